#include "troupe/runtime/checkpoint/index.hpp"

#include "troupe/core/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <set>
#include <utility>

namespace troupe {

namespace {

using detail::concat;

constexpr std::string_view step_prefix = "step-";
constexpr int step_digits = 9;

Failure refusal(std::string text) {
  return detail::failure(ErrorCode::bad_configuration, std::move(text));
}

}  // namespace

std::string step_name(std::uint64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < step_digits) {
    digits.insert(0, step_digits - digits.size(), '0');
  }
  return std::string(step_prefix) + digits;
}

std::optional<StepFolder> parse_step_name(std::string_view name) {
  StepFolder folder;
  folder.finished = !name.ends_with(unfinished_suffix);
  const std::string_view stem =
      folder.finished ? name : name.substr(0, name.size() - unfinished_suffix.size());
  if (!stem.starts_with(step_prefix)) {
    return std::nullopt;
  }
  const std::string_view digits = stem.substr(step_prefix.size());
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), folder.step);
  if (error != std::errc() || step_name(folder.step) != stem) {
    return std::nullopt;  // also "step-1", which is not how a step is written
  }
  return folder;
}

std::string rank_file_name(int rank) {
  std::array<char, 32> name{};
  static_cast<void>(std::snprintf(name.data(), name.size(), "rank-%05d.safetensors", rank));
  return name.data();
}

std::string weight_name(std::string_view parameter) {
  return concat("weights/", parameter);
}

std::string state_name(std::string_view state, std::string_view parameter) {
  return concat("states/", state, "/", parameter);
}

int coordinate_of(int rank, const DeviceMesh& mesh, std::string_view group) {
  return group == expert_group ? rank % mesh.shard % mesh.ep : 0;
}

std::vector<Overlap> locate(const CheckpointIndex& index,
                            const IndexedParameter& parameter,
                            int coordinate,
                            std::int64_t offset,
                            std::int64_t numel) {
  std::vector<Overlap> found;
  for (const IndexedPiece& piece : parameter.pieces) {
    if (coordinate_of(piece.rank, index.mesh, parameter.group) != coordinate) {
      continue;
    }
    const std::int64_t begin = std::max(offset, piece.offset);
    const std::int64_t end = std::min(offset + numel, piece.offset + piece.numel);
    if (begin < end) {
      found.push_back({.rank = piece.rank,
                       .piece_offset = begin - piece.offset,
                       .numel = end - begin,
                       .wanted_offset = begin - offset});
    }
  }
  return found;
}

Result<void> check_model(const CheckpointIndex& index, const Model& model, const DeviceMesh& mesh) {
  std::map<std::string_view, const IndexedParameter*> saved;
  for (const IndexedParameter& parameter : index.parameters) {
    saved.emplace(parameter.name, &parameter);
  }
  for (const Parameter& parameter : model.parameters()) {
    const auto found = saved.find(parameter.full_name);
    if (found == saved.end()) {
      return refusal(
          concat("it has no parameter '", parameter.full_name, "', which the model has"));
    }
    const IndexedParameter& other = *found->second;
    saved.erase(found);
    if (other.shape != parameter.spec.shape) {
      return refusal(concat("parameter '", other.name, "' has shape ", to_string(other.shape),
                            " in it, the model's is ", to_string(parameter.spec.shape)));
    }
    if (other.group != parameter.spec.group) {
      return refusal(concat("parameter '", other.name, "' is of process group '", other.group,
                            "' in it, the model's of '", parameter.spec.group, "'"));
    }
    if (other.group == expert_group && index.mesh.ep != mesh.ep) {
      return refusal(concat("it was saved with mesh.ep = ", index.mesh.ep,
                            " and has expert parameters ('", other.name,
                            "'); the runtime has mesh.ep = ", mesh.ep));
    }
  }
  if (!saved.empty()) {
    return refusal(
        concat("it has a parameter '", saved.begin()->first, "', which the model does not have"));
  }
  return {};
}

}  // namespace troupe
