// The training text: bytes of one file or of all files of a folder, and which of them make a batch.
// Immutable after loading; any thread. The choice of batches is a pure function of its arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace gpt {

/// One line: which path cannot be used and why.
struct CorpusError {
  std::string text;
};

class Corpus {
 public:
  /// Reads `path`, a file or a folder. Of a folder: its regular files in the order of their names
  /// (bytewise), not those of folders inside it; symbolic links are followed, and a file reached by
  /// two names is read once, under the first.
  /// sequence  tokens of one sequence; the text needs one byte more
  /// Errors    missing or unreadable path, no text, less than sequence + 1 bytes
  static std::variant<Corpus, CorpusError> load(const std::filesystem::path& path,
                                                int64_t sequence);

  /// The whole text as bytes.
  [[nodiscard]] std::span<const uint8_t> text() const { return text_; }
  [[nodiscard]] int64_t sequence() const { return sequence_; }

  /// Writes one rank's sequences of one micro-batch: tokens_out (batch, sequence) and targets_out,
  /// the same one byte further; `batch` follows from their size. Start positions are hashes of
  /// (seed, step, micro_batch, rank * batch + row), so the batch of all ranks together is the same
  /// however many ranks share it. std::invalid_argument when sizes or ranks make no sense.
  void batch(int64_t step,
             int64_t micro_batch,
             int64_t rank,
             int64_t ranks,
             uint64_t seed,
             std::span<uint8_t> tokens_out,
             std::span<uint8_t> targets_out) const;

 private:
  Corpus(std::vector<uint8_t> text, int64_t sequence);

  std::vector<uint8_t> text_;  // at least sequence_ + 1
  int64_t sequence_;
};

}  // namespace gpt
