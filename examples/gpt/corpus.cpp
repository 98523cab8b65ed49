#include "corpus.hpp"

#include "hash.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace gpt {

namespace {

namespace fs = std::filesystem;

/// Appends the bytes of `file`; false when it cannot be read.
bool append_file(const fs::path& file, std::vector<uint8_t>& text) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return false;
  }
  text.insert(text.end(), std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  return !in.bad();
}

/// The folder's regular files by name, each content once.
std::vector<fs::path> files_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code dangling;
    if (entry->is_regular_file(dangling)) {
      names.push_back(entry->path());
    }
  }
  // The operating system's order differs between machines.
  std::ranges::sort(names, {}, [](const fs::path& name) { return name.filename().native(); });
  std::set<fs::path> seen;
  std::vector<fs::path> files;
  for (const fs::path& name : names) {
    fs::path file = fs::canonical(name, error);
    if (error) {
      return files;
    }
    if (seen.insert(file).second) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

CorpusError cannot_read(const fs::path& path, const std::string& why) {
  return {"cannot read the text at " + path.string() + ": " + why};
}

}  // namespace

Corpus::Corpus(std::vector<uint8_t> text, int64_t sequence)
    : text_(std::move(text)), sequence_(sequence) {}

std::variant<Corpus, CorpusError> Corpus::load(const fs::path& path, int64_t sequence) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return cannot_read(path, error ? error.message() : "no such file or folder");
  }
  const bool folder = fs::is_directory(status);
  if (!folder && !fs::is_regular_file(status)) {
    return cannot_read(path, "neither a file nor a folder");
  }
  const std::vector<fs::path> files = folder ? files_of(path, error) : std::vector{path};
  if (error) {
    return cannot_read(path, error.message());
  }
  if (files.empty()) {
    return cannot_read(path, "the folder has no files");
  }
  std::vector<uint8_t> text;
  for (const fs::path& file : files) {
    if (!append_file(file, text)) {
      return cannot_read(file, "the file cannot be opened or read");
    }
  }
  if (text.empty()) {
    return cannot_read(path, "it is empty");
  }
  if (std::cmp_less(text.size(), sequence + 1)) {
    return cannot_read(path, std::to_string(text.size()) + " bytes are too few for a sequence of " +
                                 std::to_string(sequence) + " and the byte after it");
  }
  return Corpus(std::move(text), sequence);
}

void Corpus::batch(int64_t step,
                   int64_t micro_batch,
                   int64_t rank,
                   int64_t ranks,
                   uint64_t seed,
                   std::span<uint8_t> tokens_out,
                   std::span<uint8_t> targets_out) const {
  const auto length = static_cast<size_t>(sequence_);
  if (rank < 0 || rank >= ranks) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  if (tokens_out.size() != targets_out.size() || tokens_out.size() % length != 0) {
    throw std::invalid_argument(std::to_string(tokens_out.size()) + " tokens and " +
                                std::to_string(targets_out.size()) +
                                " targets are no whole sequences of " + std::to_string(length));
  }
  const size_t rows = tokens_out.size() / length;
  const uint64_t stream =
      mix(mix(seed, static_cast<uint64_t>(step)), static_cast<uint64_t>(micro_batch));
  const size_t starts = text_.size() - length;
  for (size_t row = 0; row < rows; ++row) {
    const uint64_t sample = static_cast<uint64_t>(rank) * rows + row;
    const auto tokens = text().subspan(mix(stream, sample) % starts);
    std::ranges::copy(tokens.first(length), tokens_out.subspan(row * length).begin());
    std::ranges::copy(tokens.subspan(1, length), targets_out.subspan(row * length).begin());
  }
}

}  // namespace gpt
