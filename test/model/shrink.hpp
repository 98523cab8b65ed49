/// Makes a failing schedule short, and lists of numbers readable.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

using Choices = std::vector<std::uint16_t>;

/// Whether a run by these choices still fails in the same way.
using StillFails = std::function<bool(const Choices&)>;

/// The list with as many numbers as possible made zero, and zeros at its end dropped (a replay has
/// zeros there anyway): parts of half its length, of a quarter, … down to one, as long as it still
/// fails. `attempts_max` runs at most.
Choices shrink(Choices failing, const StillFails& still_fails, int attempts_max);

/// "3,0*14,1": numbers, `n*k` for k equal ones.
std::string to_text(const Choices& choices);
std::optional<Choices> from_text(const std::string& text);

}  // namespace troupe::test
