#include "troupe/runtime/rank_statement.hpp"

#include "troupe/comm/call_check.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

namespace troupe {

namespace {

Failure cannot(int rank, const std::string& why) {
  return {
      .code = ErrorCode::peer_failed, .text = "the step cannot be given up: " + why, .rank = rank};
}

using Number = std::function<std::uint64_t(const RankStatement&)>;

/// If the ranks do not all have the same number of something, "2 on rank 1, 3 on ranks 0 and 2".
/// `rank` becomes the first one that differs from rank 0.
std::string differences(std::span<const RankStatement> statements,
                        const Number& number,
                        int& rank) {
  std::map<std::uint64_t, std::vector<int>> ranks_with;
  for (std::size_t each = 0; each < statements.size(); ++each) {
    ranks_with[number(statements[each])].push_back(static_cast<int>(each));
  }
  if (ranks_with.size() == 1) {
    return {};
  }
  std::string text;
  rank = static_cast<int>(statements.size());
  for (const auto& [value, ranks] : ranks_with) {
    text += (text.empty() ? "" : ", ") + std::to_string(value) + " on " + describe_ranks(ranks);
    rank = ranks.front() == 0 ? rank : std::min(rank, ranks.front());
  }
  return text;
}

}  // namespace

std::string encode(const RankStatement& statement) {
  std::ostringstream word;
  word << statement.runtimes.size();
  for (const RuntimeStatement& runtime : statement.runtimes) {
    word << ' ' << runtime.updates << ' ' << runtime.versions << ' ' << runtime.steps << ' '
         << runtime.saves;
  }
  word << ' ' << statement.refusal;
  return word.str();
}

RankStatement decode(const std::string& word) {
  RankStatement statement;
  std::istringstream in(word);
  std::size_t count = 0;
  in >> count;
  statement.runtimes.resize(count);
  for (RuntimeStatement& runtime : statement.runtimes) {
    in >> runtime.updates >> runtime.versions >> runtime.steps >> runtime.saves;
  }
  in.get();
  std::getline(in, statement.refusal, '\0');
  return statement;
}

std::optional<Failure> verdict(std::span<const RankStatement> statements) {
  const RankStatement& first = statements.front();
  for (std::size_t rank = 0; rank < statements.size(); ++rank) {
    if (!statements[rank].refusal.empty()) {
      const int own = static_cast<int>(rank);
      return cannot(own, "rank " + std::to_string(own) + ": " + statements[rank].refusal);
    }
  }
  int rank = 0;
  const auto count = [](const RankStatement& each) { return each.runtimes.size(); };
  if (const std::string text = differences(statements, count, rank); !text.empty()) {
    return cannot(rank, "ranks have different numbers of runtimes: " + text);
  }
  for (std::size_t index = 0; index < first.runtimes.size(); ++index) {
    const std::string which =
        first.runtimes.size() > 1 ? " of runtime " + std::to_string(index + 1) : "";
    const auto updates = [&](const RankStatement& each) { return each.runtimes[index].updates; };
    if (const std::string text = differences(statements, updates, rank); !text.empty()) {
      return cannot(rank, "ranks do not stand behind the same update" + which +
                              " (initialisation is one): " + text);
    }
    const auto other = std::ranges::find_if_not(statements, [&](const RankStatement& each) {
      return each.runtimes[index].versions == first.runtimes[index].versions;
    });
    if (other != statements.end()) {
      rank = static_cast<int>(other - statements.begin());
      return cannot(rank, "rank " + std::to_string(rank) + " has other buckets" + which +
                              " than rank 0, or has updated other ones");
    }
  }
  return std::nullopt;
}

std::uint64_t common_steps(std::span<const RankStatement> statements, std::size_t index) {
  std::uint64_t steps = 0;
  for (const RankStatement& statement : statements) {
    steps = std::max(steps, statement.runtimes[index].steps);
  }
  return steps;
}

bool all_save(std::span<const RankStatement> statements, std::size_t index) {
  return std::ranges::all_of(statements,
                             [&](const RankStatement& each) { return each.runtimes[index].saves; });
}

}  // namespace troupe
