// What launchers set, and what is made of it. The variables are those that the launchers' own
// documentation names; those of Open MPI 4.1 and MPICH 4.0 were taken from runs of theirs.
#include "troupe/runtime/launch_environment.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace troupe {
namespace {

/// The variables of `base` with those of `changes`; one without a value is taken out.
LaunchVariables with(LaunchVariables base,
                     const std::vector<std::pair<std::string, const char*>>& changes) {
  for (const auto& [name, value] : changes) {
    base.erase(name);
    if (value != nullptr) {
      base[name] = value;
    }
  }
  return base;
}

/// "rank 1 of 4, local 1, store 127.0.0.1:29500", or why there is no such thing.
std::string said(const LaunchVariables& variables) {
  try {
    const auto join = join_options(variables);
    return !join
               ? "nothing"
               : "rank " + std::to_string(join->rank) + " of " + std::to_string(join->world_size) +
                     ", local " + std::to_string(join->local_rank) + ", store " + join->store_host +
                     ":" + std::to_string(join->store_port);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_configuration);
    return error.what();
  }
}

const LaunchVariables torchrun{{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "none"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const LaunchVariables by_hand{
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
const LaunchVariables open_mpi{{"OMPI_COMM_WORLD_RANK", "3"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "29500"}};
const LaunchVariables mpich{{"PMI_RANK", "2"},        {"PMI_SIZE", "4"},
                            {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"},
                            {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
const LaunchVariables slurm{{"SLURM_JOB_ID", "200505"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_PROCID", "6"},
                            {"SLURM_LOCALID", "2"},
                            {"SLURM_NTASKS", "16"},
                            {"SLURM_STEP_NUM_TASKS", "8"},
                            {"SLURM_STEP_NUM_NODES", "2"},
                            {"SLURM_STEP_NODELIST", "gnode[10,20]"},
                            {"SLURM_JOB_NODELIST", "gnode[08,10,20,25]"}};

struct Row {
  const char* what;
  LaunchVariables variables;
  std::string said;
};

TEST_CASE("each launcher's variables say rank, world size, local rank and where the store is") {
  // clang-format off
  const std::vector<Row> rows{
      {"nothing is set", {}, "nothing"},
      {"what everybody has", {{"PATH", "/bin"}, {"LOCAL_RANK", "3"}, {"MASTER_ADDR", "node1"}, {"TROUPE_SECRET", "x"}}, "nothing"},
      {"torchrun, whose agent listens at the port", torchrun, "rank 5 of 8, local 1, store node1:29501"},
      {"torchrun whose ranks are to listen", with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), "rank 5 of 8, local 1, store node1:29500"},
      {"torchrun --standalone, without a secret", with(torchrun, {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "8"}}), "rank 5 of 8, local 1, store 127.0.0.1:29501"},
      {"torchrun --standalone, with one", with(torchrun, {{"LOCAL_WORLD_SIZE", "8"}, {"TROUPE_SECRET", "x"}}), "rank 5 of 8, local 1, store node1:29501"},
      {"by hand", by_hand, "rank 1 of 2, local 0, store 10.0.0.1:29500"},
      {"by hand on one host", with(by_hand, {{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", nullptr}}), "rank 1 of 2, local 1, store 127.0.0.1:29500"},
      {"set to nothing is not set", with(by_hand, {{"LOCAL_RANK", ""}, {"TROUPE_STORE", ""}, {"PMI_RANK", ""}}), "rank 1 of 2, local 0, store 10.0.0.1:29500"},
      {"one rank needs no store", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "rank 0 of 1, local 0, store 127.0.0.1:0"},
      {"Open MPI", open_mpi, "rank 3 of 4, local 1, store node1:29500"},
      {"Open MPI on one host", with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"MASTER_ADDR", nullptr}}), "rank 3 of 4, local 1, store 127.0.0.1:29500"},
      {"MPICH", mpich, "rank 2 of 4, local 0, store node1:29500"},
      {"MPICH on one host", with(mpich, {{"MPI_LOCALNRANKS", "4"}, {"MASTER_ADDR", nullptr}}), "rank 2 of 4, local 0, store 127.0.0.1:29500"},
      {"Slurm", slurm, "rank 6 of 8, local 2, store gnode10:22503"},
      {"a later step of the job", with(slurm, {{"SLURM_STEP_ID", "3"}}), "rank 6 of 8, local 2, store gnode10:22506"},
      {"Slurm that tells the job's hosts only", with(slurm, {{"SLURM_STEP_NODELIST", nullptr}}), "rank 6 of 8, local 2, store gnode08:22503"},
      {"Slurm that tells the job's tasks only", with(slurm, {{"SLURM_STEP_NUM_TASKS", nullptr}}), "rank 6 of 16, local 2, store gnode10:22503"},
      {"Slurm on one host", with(slurm, {{"SLURM_STEP_NUM_NODES", "1"}}), "rank 6 of 8, local 2, store 127.0.0.1:22503"},
      {"Slurm with an address of one's own", with(slurm, {{"MASTER_ADDR", "10.1.1.1"}, {"MASTER_PORT", "1"}}), "rank 6 of 8, local 2, store 10.1.1.1:1"},
      {"the script of a Slurm job, outside of srun", with(slurm, {{"SLURM_STEP_ID", nullptr}}), "nothing"},
  };
  // clang-format on
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(said(row.variables) == row.said);
  }
}

TEST_CASE("of nested launchers the inner one counts, and what is left over is found") {
  const auto both = [](LaunchVariables inner, const LaunchVariables& outer) {
    inner.insert(outer.begin(), outer.end());
    return inner;
  };
  // clang-format off
  const std::vector<Row> rows{
      {"srun starts torchrun", both(torchrun, slurm), "rank 5 of 8, local 1, store node1:29501"},
      {"srun starts mpirun's daemons", both(open_mpi, slurm), "rank 3 of 4, local 1, store node1:29500"},
      {"srun --mpi=pmi2", both(slurm, {{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "9"}}), "rank 6 of 8, local 2, store node1:9"},
      {"srun --mpi=pmi2, which alone says where", both(slurm, {{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}}), "rank 6 of 8, local 2, store gnode10:22503"},
      {"torchrun starts troupe-run", both({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "7"}, {"TROUPE_LAUNCHER", "troupe-run"}}, torchrun), "rank 1 of 2, local 1, store node1:7"},
      {"RANK made from Slurm's", both({{"RANK", "6"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "7"}}, slurm), "rank 6 of 8, local 0, store node1:7"},
      {"RANK left over", both(by_hand, slurm),
       "RANK is 1 and WORLD_SIZE is 2, but SLURM_PROCID is 6 and SLURM_STEP_NUM_TASKS is 8; unset what is left over, or set TROUPE_RANK and TROUPE_WORLD_SIZE"},
      {"RANK of another size", both({{"RANK", "3"}, {"WORLD_SIZE", "8"}}, open_mpi),
       "RANK is 3 and WORLD_SIZE is 8, but OMPI_COMM_WORLD_RANK is 3 and OMPI_COMM_WORLD_SIZE is 4; unset what is left over, or set TROUPE_RANK and TROUPE_WORLD_SIZE"},
      {"RANK of another rank", both({{"RANK", "0"}, {"WORLD_SIZE", "4"}}, mpich),
       "RANK is 0 and WORLD_SIZE is 4, but PMI_RANK is 2 and PMI_SIZE is 4; unset what is left over, or set TROUPE_RANK and TROUPE_WORLD_SIZE"},
      {"our own go before all", both({{"TROUPE_RANK", "1"}, {"TROUPE_WORLD_SIZE", "3"}, {"TROUPE_LOCAL_RANK", "1"}, {"TROUPE_STORE", "node7:80"}}, both(by_hand, slurm)), "rank 1 of 3, local 1, store node7:80"},
      {"a store of one's own", with(torchrun, {{"TROUPE_STORE", "[fd00::1]:80"}}), "rank 5 of 8, local 1, store fd00::1:80"},
  };
  // clang-format on
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(said(row.variables) == row.said);
  }
}

TEST_CASE("what is missing, wrong or contradictory is named") {
  // clang-format off
  const std::vector<Row> rows{
      {"no size", with(by_hand, {{"WORLD_SIZE", nullptr}}), "WORLD_SIZE is not set, though RANK is"},
      {"no rank", with(by_hand, {{"RANK", nullptr}}), "RANK is not set, though WORLD_SIZE is"},
      {"no rank of ours", {{"TROUPE_WORLD_SIZE", "2"}}, "TROUPE_RANK is not set, though TROUPE_WORLD_SIZE is"},
      {"no size of Open MPI", with(open_mpi, {{"OMPI_COMM_WORLD_SIZE", nullptr}}), "OMPI_COMM_WORLD_SIZE is not set, though OMPI_COMM_WORLD_RANK is"},
      {"no size of MPICH", with(mpich, {{"PMI_SIZE", nullptr}}), "PMI_SIZE is not set, though PMI_RANK is"},
      {"no size of Slurm", with(slurm, {{"SLURM_NTASKS", nullptr}, {"SLURM_STEP_NUM_TASKS", nullptr}}), "SLURM_NTASKS is not set, though SLURM_PROCID is"},
      {"rank beyond", with(by_hand, {{"RANK", "2"}}), "RANK is 2, but WORLD_SIZE is 2"},
      {"no number", with(by_hand, {{"RANK", "1x"}}), "RANK is '1x'; expected a whole number from 0 to 1048576"},
      {"negative", with(by_hand, {{"RANK", "-1"}}), "RANK is '-1'; expected a whole number from 0 to 1048576"},
      {"no ranks at all", with(by_hand, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE is '0'; expected a whole number from 1 to 1048576"},
      {"local rank beyond", with(torchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK is 4, but this host has 4 of the 8 ranks"},
      {"no host", with(by_hand, {{"MASTER_ADDR", nullptr}}), "MASTER_ADDR is not set; expected the host of rank 0 (or TROUPE_STORE=host:port)"},
      {"no host of MPI", with(open_mpi, {{"MASTER_ADDR", nullptr}}), "MASTER_ADDR is not set; expected the host of rank 0 (or TROUPE_STORE=host:port)"},
      {"no port", with(by_hand, {{"MASTER_PORT", nullptr}}), "MASTER_PORT is not set; expected a free port of rank 0's host, for instance 29500 (or TROUPE_STORE=host:port)"},
      {"no such port", with(by_hand, {{"MASTER_PORT", "65536"}}), "MASTER_PORT is '65536'; expected a whole number from 1 to 65535"},
      {"no port behind the agent's", with(torchrun, {{"MASTER_PORT", "65535"}}), "MASTER_PORT is 65535, where torchrun's agent listens, so the store of the ranks needs the next one; set TROUPE_STORE=host:port"},
      {"no host of Slurm", with(slurm, {{"SLURM_STEP_NODELIST", nullptr}, {"SLURM_JOB_NODELIST", nullptr}}), "MASTER_ADDR is not set; expected the host of rank 0 (or TROUPE_STORE=host:port)"},
      {"hosts that are none", with(slurm, {{"SLURM_STEP_NODELIST", "gnode[10"}}), "SLURM_STEP_NODELIST is 'gnode[10', which is no list of hosts"},
      {"no port of Slurm", with(slurm, {{"SLURM_JOB_ID", nullptr}}), "MASTER_PORT is not set; expected a free port of rank 0's host, for instance 29500 (or TROUPE_STORE=host:port)"},
      {"a store without a port", with(by_hand, {{"TROUPE_STORE", "node1"}}), "TROUPE_STORE is 'node1'; expected host:port, or [address]:port for IPv6"},
      {"a store without a host", with(by_hand, {{"TROUPE_STORE", ":80"}}), "TROUPE_STORE is ':80'; expected host:port, or [address]:port for IPv6"},
      {"IPv6 without brackets", with(by_hand, {{"TROUPE_STORE", "fd00::1:80"}}), "TROUPE_STORE is 'fd00::1:80'; expected host:port, or [address]:port for IPv6"},
      {"a store without a number", with(by_hand, {{"TROUPE_STORE", "node1:http"}}), "TROUPE_STORE is 'node1:http'; expected a whole number from 1 to 65535"},
      {"a store and no rank", {{"TROUPE_STORE", "node1:80"}}, "TROUPE_STORE is set, but TROUPE_RANK and TROUPE_WORLD_SIZE are not, and no launcher says which rank this is"},
      {"address and interface", with(by_hand, {{"TROUPE_ADDRESS", "10.0.0.2"}, {"TROUPE_INTERFACE", "eth0"}}), "TROUPE_ADDRESS and TROUPE_INTERFACE are both set; expected one of them"},
      {"secret and file", with(by_hand, {{"TROUPE_SECRET", "a"}, {"TROUPE_SECRET_FILE", "/b"}}), "TROUPE_SECRET and TROUPE_SECRET_FILE are both set; expected one of them"},
  };
  // clang-format on
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(said(row.variables) == row.said);
  }
}

TEST_CASE("secret, address, interface and the folder of failures are passed on") {
  const auto join = join_options(with(by_hand, {{"TROUPE_SECRET", "of the job"},
                                                {"TROUPE_ADDRESS", "10.0.0.2"},
                                                {"TROUPE_FAILURE_DIR", "/var/failures"}}));
  REQUIRE(join);
  CHECK(join->secret == "of the job");
  CHECK(join->address == "10.0.0.2");
  CHECK(join->interface_name.empty());
  CHECK(join->failure_directory == "/var/failures");
  CHECK(join_options(with(by_hand, {{"TROUPE_INTERFACE", "eth0"}}))->interface_name == "eth0");
  CHECK(join_options(by_hand)->secret.empty());
}

TEST_CASE("the first host of a list is found") {
  const std::vector<std::pair<const char*, std::optional<std::string>>> rows{
      {"a", "a"},
      {"a,b", "a"},
      {"a[07-09,12],b", "a07"},
      {"gnode[10,20]", "gnode10"},
      {"a[3]", "a3"},
      {"rack[1-2]node[03,05-07]x,b", "rack1node03x"},
      {"b,a[1-2]", "b"},
      {"a-1.example.org", "a-1.example.org"},
      {"", std::nullopt},
      {",a", std::nullopt},
      {"a[1", std::nullopt},
      {"a[]", std::nullopt},
      {"a1]", std::nullopt},
      {"(null)", std::nullopt}};
  for (const auto& [list, host] : rows) {
    CAPTURE(list);
    CHECK(first_host(list) == host);
  }
}

TEST_CASE("the process's own variables are read") {
  REQUIRE(::setenv("TROUPE_TEST_VARIABLE", "a=b", 1) == 0);
  CHECK(launch_variables().at("TROUPE_TEST_VARIABLE") == "a=b");
  REQUIRE(::unsetenv("TROUPE_TEST_VARIABLE") == 0);
  CHECK(launch_variables().count("TROUPE_TEST_VARIABLE") == 0);
}

/// A file in a folder of its own, both gone with the object.
class SecretFile {
 public:
  SecretFile(const std::string& content, std::filesystem::perms mode) {
    std::string name = (std::filesystem::temp_directory_path() / "troupe_test_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    std::ofstream(path(), std::ios::binary) << content;
    std::filesystem::permissions(path(), mode);
  }
  ~SecretFile() { std::filesystem::remove_all(folder_); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  std::filesystem::path path() const { return folder_ / "secret"; }
  /// What is made of it: the secret, or the error.
  std::string read() const {
    try {
      return join_options(with(by_hand, {{"TROUPE_SECRET_FILE", path().c_str()}}))->secret;
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  std::filesystem::path folder_;
};

TEST_CASE("a secret is taken from a file that only its owner can read") {
  using std::filesystem::perms;
  constexpr perms own = perms::owner_read | perms::owner_write;
  CHECK(SecretFile("s3cret\n", own).read() == "s3cret");
  CHECK(SecretFile("s3cret", perms::owner_read).read() == "s3cret");
  CHECK(SecretFile("first\nsecond\n", own).read() == "first");
  CHECK(SecretFile(std::string(4096, 'x'), own).read() == std::string(4096, 'x'));

  const auto refused = [](const SecretFile& file) {
    const std::string begin = "the secret's file " + file.path().string();
    const std::string text = file.read();
    REQUIRE(text.starts_with(begin));
    return text.substr(begin.size());
  };
  for (const perms mode : {own | perms::group_read, own | perms::others_read,
                           own | perms::group_write, own | perms::others_exec}) {
    CHECK(refused(SecretFile("s3cret", mode)) ==
          " is open to others; expected mode 0600 (chmod 600 does it)");
  }
  CHECK(refused(SecretFile("", own)) == " has a first line of 0 bytes; expected 1 to 4096");
  CHECK(refused(SecretFile("\nx", own)) == " has a first line of 0 bytes; expected 1 to 4096");
  CHECK(refused(SecretFile(std::string(4097, 'x'), own)) ==
        " has a first line of 4097 or more bytes; expected 1 to 4096");
  const SecretFile gone("s3cret", own);
  std::filesystem::remove(gone.path());
  CHECK(refused(gone) == " cannot be opened: No such file or directory");
  std::filesystem::create_directory(gone.path());
  CHECK(refused(gone) == " is no regular file");
}

}  // namespace
}  // namespace troupe
