// Tests of examples/gpt/corpus.hpp.
#include "gpt_fixture.hpp"
#include <troupe/examples/gpt/corpus.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

namespace gpt::test {

namespace {

std::string error_of(const std::filesystem::path& path, int64_t sequence) {
  const auto loaded = Corpus::load(path, sequence);
  const auto* error = std::get_if<CorpusError>(&loaded);
  return error != nullptr ? error->text : "";
}

std::string text_of(const std::filesystem::path& path) {
  const auto loaded = Corpus::load(path, 1);
  const auto text = std::get<Corpus>(loaded).text();
  return {text.begin(), text.end()};
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos && text.find('\n') == std::string::npos;
}

}  // namespace

TEST_CASE("a text that cannot be used is answered with one line that says why") {
  const TemporaryFolder folder("corpus_errors");
  CHECK(mentions(error_of(folder.path() / "nowhere", 4), "nowhere: "));
  CHECK(mentions(error_of(folder.path() / "nowhere", 4), "No such file"));
  CHECK(mentions(error_of(folder.path(), 4), "the folder has no files"));
  CHECK(mentions(error_of("/dev/null", 4), "neither a file nor a folder"));
  const auto empty = folder.write("empty", "");
  CHECK(mentions(error_of(empty, 4), "it is empty"));
  CHECK(mentions(error_of(folder.path(), 4), "it is empty"));
  const auto four = folder.write("four", "abcd");
  CHECK(
      mentions(error_of(four, 4), "4 bytes are too few for a sequence of 4 and the byte after it"));
  CHECK(error_of(folder.write("five", "abcde"), 4).empty());
}

TEST_CASE("a folder is read in the order of names and each content once") {
  const TemporaryFolder folder("corpus_order");
  static_cast<void>(folder.write("b", "second "));
  static_cast<void>(folder.write("a", "first "));
  static_cast<void>(folder.write("c", "third "));
  std::filesystem::create_symlink("b", folder.path() / "link");
  std::filesystem::create_symlink("nowhere", folder.path() / "dangling");
  std::filesystem::create_directory(folder.path() / "inner");
  CHECK(text_of(folder.path()) == "first second third ");
  CHECK(text_of(folder.path() / "link") == "second ");
  // A link that sorts first takes the file's place.
  std::filesystem::create_symlink("c", folder.path() / "0");
  CHECK(text_of(folder.path()) == "third first second ");
}

TEST_CASE("targets are the tokens one byte further, within the text") {
  const TemporaryFolder folder("corpus_batch");
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text.push_back(static_cast<char>(i));
  }
  const auto loaded = Corpus::load(folder.write("text", text), 4);
  const auto& corpus = std::get<Corpus>(loaded);
  std::vector<uint8_t> tokens(8);
  std::vector<uint8_t> targets(8);
  std::set<int> starts;
  for (int64_t step = 0; step < 200; ++step) {
    corpus.batch(step, 0, 0, 1, 9, tokens, targets);
    for (size_t i = 0; i < 8; ++i) {
      REQUIRE(targets[i] == tokens[i] + 1);
      REQUIRE(tokens[i] == tokens[i / 4 * 4] + static_cast<int>(i % 4));
    }
    starts.insert({tokens[0], tokens[4]});
  }
  // All 16 places occur: each is missed with probability (15/16)^400 = 6e-12.
  CHECK(starts.size() == 16);
}

TEST_CASE("batches depend on every argument, and not on how ranks share them") {
  const TemporaryFolder folder("corpus_shares");
  std::string text(5000, ' ');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(mix(i));
  }
  const auto loaded = Corpus::load(folder.write("text", text), 8);
  const auto& corpus = std::get<Corpus>(loaded);
  const auto batch = [&](int64_t step, int64_t micro_batch, int64_t rank, int64_t ranks,
                         uint64_t seed) {
    const auto numel = static_cast<size_t>(12 / ranks * 8);
    std::vector<uint8_t> tokens(numel);
    std::vector<uint8_t> targets(numel);
    corpus.batch(step, micro_batch, rank, ranks, seed, tokens, targets);
    return tokens;
  };
  const auto whole = batch(5, 1, 0, 1, 7);
  CHECK(whole == batch(5, 1, 0, 1, 7));
  CHECK(whole != batch(6, 1, 0, 1, 7));
  CHECK(whole != batch(5, 2, 0, 1, 7));
  CHECK(whole != batch(5, 1, 0, 1, 8));
  CHECK(batch(5, 1, 0, 2, 7) != batch(5, 1, 1, 2, 7));
  for (const int64_t ranks : {2, 3, 4}) {
    std::vector<uint8_t> joined;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::ranges::copy(batch(5, 1, rank, ranks, 7), std::back_inserter(joined));
    }
    CHECK(joined == whole);
  }
  CHECK_THROWS_AS(batch(0, 0, 2, 2, 0), std::invalid_argument);
}

}  // namespace gpt::test
