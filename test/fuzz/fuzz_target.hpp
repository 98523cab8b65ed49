/// What the fuzz targets share. Each defines `LLVMFuzzerTestOneInput`; libFuzzer calls it with
/// inputs of its own making (./dev fuzz), replay.cpp with those of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace troupe::test {

/// Ends the program, so that the fuzzer keeps the input, unless `holds`.
inline void must(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "violated: %s\n", what);
    std::abort();
  }
}

}  // namespace troupe::test
