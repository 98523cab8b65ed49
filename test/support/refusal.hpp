/// Calls that have to be refused, with a text that names what was wrong and what is expected.
#pragma once

#include "ranks.hpp"

#include <functional>
#include <initializer_list>
#include <string>

namespace troupe::test {

/// `call` throws an `Error` of `code` whose text holds all of `parts`.
inline void expect_refused(Findings& findings,
                           const std::string& what,
                           std::initializer_list<const char*> parts,
                           const std::function<void()>& call,
                           ErrorCode code = ErrorCode::misuse) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    findings.expect(error.code() == code, what + ": code " + to_string(error.code()) + ": " + text);
    for (const char* part : parts) {
      findings.expect(text.find(part) != std::string::npos,
                      what + ": '" + part + "' is not in: " + text);
    }
    return;
  }
  findings.expect(false, what + " was not refused");
}

}  // namespace troupe::test
