/// What the variables of a process say about the job that it was launched for.
///
/// Read are those of torchrun, Open MPI, MPICH and its kin (PMI), Slurm and troupe-run, and our
/// own, TROUPE_…, which go before them; docs/launching.md lists them. A variable that is set to
/// nothing counts as not set.
///
/// Thread rules: none; `launch_variables` reads the environment, which nobody may change meanwhile.
#pragma once

#include "troupe/runtime/world.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

using LaunchVariables = std::map<std::string, std::string, std::less<>>;

/// Those of this process.
LaunchVariables launch_variables();

/// What they say; nothing if no launcher has set any of them. A function of the variables alone,
/// and of the file that TROUPE_SECRET_FILE names.
/// Throws `Error` (bad_configuration) that names the variables which are missing, cannot be used,
/// or contradict each other.
std::optional<JoinOptions> join_options(const LaunchVariables& variables);

/// The first host of a list as Slurm writes it: "a[07-09,12],b" is a07 … Nothing if it is none.
std::optional<std::string> first_host(std::string_view list);

}  // namespace troupe
