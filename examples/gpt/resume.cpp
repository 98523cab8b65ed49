#include "resume.hpp"

#include "hash.hpp"
#include "text.hpp"
#include <troupe/runtime/checkpoint.hpp>

#include <sstream>
#include <string_view>
#include <system_error>

namespace gpt {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw troupe::Error({.code = troupe::ErrorCode::bad_configuration, .text = text});
}

/// The number behind a word at the begin of a line.
int64_t number_of(std::istream& in, const std::string& word, const std::string& folder) {
  std::string found;
  int64_t number = 0;
  if (!(in >> found >> number) || found != word) {
    refuse(folder + " was not saved by this program");
  }
  return number;
}

}  // namespace

bool Resumed::goes_on(const Options& options) const {
  return ranks == options.ranks && replicas == options.replicas &&
         sum_at_step_end == options.sum_at_step_end;
}

std::string describe_run(const Options& options, const Corpus& corpus, bool mixed) {
  const OptimizerOptions& optimizer = options.optimizer;
  const bool sgd = optimizer.kind == OptimizerOptions::Kind::sgd;
  const std::string_view text(reinterpret_cast<const char*>(corpus.text().data()),
                              corpus.text().size());
  std::ostringstream out;
  out << "ranks " << options.ranks << "\nreplicas " << options.replicas << "\nsum-at-step-end "
      << options.sum_at_step_end << "\nmixed " << mixed << "\nheads " << options.config.heads
      << "\nsequence " << options.config.sequence << "\nbatch " << options.config.batch
      << "\nmicro-batches " << options.micro_batches << "\nseed " << options.seed << "\noptimizer "
      << (sgd ? "sgd" : "adamw") << "\nlr " << formatted("%.9g", double{optimizer.lr}) << "\ndtype "
      << (options.bf16_parameters ? "bf16" : "fp32") << "\ntext "
      << formatted("%016llx", static_cast<unsigned long long>(hash_text(text))) << "\n";
  return out.str();
}

Resumed resume(troupe::Runtime& runtime, const Options& options, const Corpus& corpus) {
  const troupe::LoadedCheckpoint loaded = troupe::load(runtime, options.resume);
  Resumed resumed{.folder = loaded.folder.string(), .step = static_cast<int64_t>(loaded.step)};
  std::istringstream saved(loaded.blobs.front());
  resumed.ranks = static_cast<int>(number_of(saved, "ranks", resumed.folder));
  resumed.replicas = static_cast<int>(number_of(saved, "replicas", resumed.folder));
  resumed.sum_at_step_end = number_of(saved, "sum-at-step-end", resumed.folder) != 0;
  resumed.mixed = number_of(saved, "mixed", resumed.folder) != 0;
  std::istringstream now(describe_run(options, corpus, resumed.mixed));
  std::string ours;
  for (int line = 0; line < 4; ++line) {
    std::getline(now, ours);
  }
  std::string theirs;
  std::getline(saved, theirs);  // the rest of the fourth line
  while (std::getline(now, ours)) {
    if (!std::getline(saved, theirs) || theirs != ours) {
      refuse(resumed.folder + " is of a run with '" + theirs + "'; this one has '" + ours + "'");
    }
  }
  if (resumed.step >= options.steps) {
    refuse(resumed.folder + " is of step " + std::to_string(resumed.step) + "; --steps " +
           std::to_string(options.steps) + " leaves nothing to train");
  }
  return resumed;
}

std::optional<std::string> save_refused(const Options& options) {
  if (options.save.empty()) {
    return std::nullopt;
  }
  std::error_code failed;
  std::filesystem::create_directories(options.save, failed);
  if (failed) {
    return "--save: cannot make the folder " + options.save.string() + ": " + failed.message();
  }
  const auto there = troupe::newest_checkpoint(options.save);
  if (!there) {
    return std::nullopt;
  }
  std::error_code unknown;  // neither exists, say
  const auto from = options.resume.empty()
                        ? options.resume
                        : troupe::newest_checkpoint(options.resume).value_or(options.resume);
  if (std::filesystem::equivalent(*there, from, unknown)) {
    return std::nullopt;
  }
  return "--save names a folder with a checkpoint, " + there->string() +
         ", that this run does not go on from; --resume it, or name another folder";
}

}  // namespace gpt
