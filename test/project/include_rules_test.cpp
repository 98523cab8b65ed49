#include "include_rules.hpp"

#include "tree.hpp"

#include <doctest/doctest.h>

namespace troupe::project {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("every room of this repository includes only what it may") {
  const auto tree = read_tree(TROUPE_SOURCE_DIR);
  REQUIRE(tree.sources.contains("test/project/include_rules.hpp"));  // the tree was found
  for (const auto& breach : breaches_of_include_rules(tree.sources)) {
    FAIL_CHECK(breach);
  }
}

TEST_CASE("include lines are read with blanks, in brackets and in quotes") {
  const auto includes =
      includes_of("// note\n  #  include <vector>\n#include \"a.hpp\"\n// #include <map>\n");
  REQUIRE(includes.size() == 2);
  CHECK(includes[0].target == "vector");
  CHECK(includes[0].line == 2);
  CHECK_FALSE(includes[0].quoted);
  CHECK(includes[1].target == "a.hpp");
  CHECK(includes[1].quoted);
}

TEST_CASE("core uses the standard library and itself") {
  const Sources clean{{"core/a.hpp", "#include <vector>\n"},
                      {"core/a.cpp", "#include <troupe/core/a.hpp>\n"}};
  CHECK(breaches_of_include_rules(clean).empty());

  CHECK(breaches_of_include_rules({{"core/a.hpp", "#include <spdlog/spdlog.h>\n"}}) ==
        Lines{"core/a.hpp:1: spdlog/spdlog.h: core/ may not use spdlog"});
  CHECK(breaches_of_include_rules({{"core/a.cpp", "\n#include <unistd.h>\n"}}) ==
        Lines{"core/a.cpp:2: unistd.h: core/ may not use system"});
}

TEST_CASE("a room that includes one above it is named") {
  CHECK(breaches_of_include_rules(
            {{"core/a.cpp", "#include <troupe/comm/b.hpp>\n"}, {"comm/b.hpp", ""}}) ==
        Lines{"core/a.cpp:1: troupe/comm/b.hpp: core/ may not include comm/"});
  CHECK(breaches_of_include_rules(
            {{"layers/a.cpp", "#include <troupe/comm/b.hpp>\n"}, {"comm/b.hpp", ""}}) ==
        Lines{"layers/a.cpp:1: troupe/comm/b.hpp: layers/ may not include comm/"});
  CHECK(breaches_of_include_rules(
            {{"runtime/a.cpp", "#include <troupe/examples/b.hpp>\n"}, {"examples/b.hpp", ""}}) ==
        Lines{"runtime/a.cpp:1: troupe/examples/b.hpp: runtime/ may not include examples/"});
}

TEST_CASE("only actors and tests include CAF") {
  const std::string caf = "#include <caf/event_based_actor.hpp>\n";
  CHECK(breaches_of_include_rules({{"actors/a.cpp", caf}, {"test/actors/a.cpp", caf}}).empty());
  for (const std::string room : {"core", "layers", "comm", "runtime"}) {
    CAPTURE(room);
    CHECK(breaches_of_include_rules({{room + "/a.cpp", caf}}).size() == 1);
  }
}

TEST_CASE("a public header that reaches CAF through another header is named with the way") {
  const Sources sources{{"runtime/runtime.hpp", "#include <troupe/actors/scheduler.hpp>\n"},
                        {"actors/scheduler.hpp", "#include <caf/actor.hpp>\n"}};
  CHECK(breaches_of_include_rules(sources) ==
        Lines{"runtime/runtime.hpp: a public header reaches a backend: "
              "runtime/runtime.hpp > actors/scheduler.hpp > caf/actor.hpp"});

  const Sources hidden{{"runtime/runtime.cpp", "#include <troupe/actors/scheduler.hpp>\n"},
                       {"actors/scheduler.hpp", "#include <caf/actor.hpp>\n"}};
  CHECK(breaches_of_include_rules(hidden).empty());

  const Sources through_private{
      {"runtime/runtime.hpp", "#include \"troupe/runtime/runtime_impl.hpp\"\n"},
      {"runtime/runtime_impl.hpp", "#include \"troupe/actors/scheduler.hpp\"\n"},
      {"actors/scheduler.hpp", "#include <caf/actor.hpp>\n"}};
  CHECK(breaches_of_include_rules(through_private) ==
        Lines{"runtime/runtime.hpp: a public header reaches a backend: runtime/runtime.hpp > "
              "runtime/runtime_impl.hpp > actors/scheduler.hpp > caf/actor.hpp"});
}

TEST_CASE("headers that include each other do not trap the check") {
  CHECK(breaches_of_include_rules({{"layers/a.hpp", "#include <troupe/layers/b.hpp>\n"},
                                   {"layers/b.hpp", "#include <troupe/layers/a.hpp>\n"}})
            .empty());
}

TEST_CASE("CUDA, NCCL, Gloo and Boost are recognised by the names of their headers") {
  for (const std::string header :
       {"cuda_runtime.h", "cuda/atomic", "nccl.h", "gloo/context.h", "boost/asio.hpp"}) {
    CAPTURE(header);
    CHECK(breaches_of_include_rules({{"comm/a.cpp", "#include <" + header + ">\n"}}).empty());
    CHECK(breaches_of_include_rules({{"runtime/a.cpp", "#include <" + header + ">\n"}}).size() ==
          1);
  }
}

TEST_CASE("our headers are included by their path from the root, and exist") {
  CHECK(breaches_of_include_rules({{"core/a.cpp", "#include \"a.hpp\"\n"}, {"core/a.hpp", ""}}) ==
        Lines{"core/a.cpp:1: a.hpp: our headers are included as troupe/room/file.hpp"});
  CHECK(breaches_of_include_rules(
            {{"examples/gpt/a.cpp", "#include \"a.hpp\"\n"}, {"examples/gpt/a.hpp", ""}})
            .empty());
  CHECK(breaches_of_include_rules({{"examples/gpt/a.cpp", "#include \"b.hpp\"\n"}}) ==
        Lines{"examples/gpt/a.cpp:1: b.hpp: there is no examples/gpt/b.hpp"});
  CHECK(breaches_of_include_rules(
            {{"core/a.cpp", "#include \"troupe/core/a.hpp\"\n"}, {"core/a.hpp", ""}})
            .empty());
  CHECK(breaches_of_include_rules({{"core/a.cpp", "#include <troupe/core/gone.hpp>\n"}}) ==
        Lines{"core/a.cpp:1: troupe/core/gone.hpp: there is no core/gone.hpp"});
}

TEST_CASE("a folder without a row in the table is named") {
  CHECK(breaches_of_include_rules({{"attic/a.cpp", ""}}) ==
        Lines{"attic/a.cpp: no row for this room"});
}

}  // namespace
}  // namespace troupe::project
