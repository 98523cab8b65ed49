// Integer hashing for choices that must be the same on every machine: initial values, data order.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpt {

/// Finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit changes half of the output.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

/// Hash of `seed` followed by `value`; chain calls to hash a tuple, in order.
constexpr uint64_t mix(uint64_t seed, uint64_t value) {
  return mix(mix(seed) ^ value);
}

/// FNV-1a of the bytes of `text`.
constexpr uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace gpt
