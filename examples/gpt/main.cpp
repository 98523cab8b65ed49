// Command line of the demo; everything else is in demo.hpp.
#include "demo.hpp"
#include "options.hpp"
#include <troupe/core/error.hpp>
#include <troupe/runtime/launch_environment.hpp>

#include <exception>
#include <iostream>
#include <ostream>
#include <span>
#include <unistd.h>
#include <variant>

int main(int argc, char** argv) {
  try {
    const std::span<const char* const> arguments(argv, static_cast<size_t>(argc));
    const auto parsed = gpt::parse_options(arguments.subspan(argc > 0 ? 1 : 0),
                                           troupe::join_options(troupe::launch_variables()));
    if (const auto* refusal = std::get_if<gpt::Refusal>(&parsed)) {
      if (refusal->exit_code == 0) {
        std::cout << refusal->text;
      } else {
        std::cerr << "gpt: " << refusal->text << "\n";
      }
      return refusal->exit_code;
    }
    const auto& options = std::get<gpt::Options>(parsed);
    std::ostream nobody(nullptr);
    return gpt::run_demo(options, gpt::speaks(options) ? std::cout : nobody, std::cerr,
                         isatty(STDOUT_FILENO) == 1);
  } catch (const troupe::Error& error) {
    // A configuration that only the library could judge is a wrong option too.
    std::cerr << "gpt: " << error.what() << "\n";
    return error.code() == troupe::ErrorCode::bad_configuration ? 2 : 1;
  } catch (const std::exception& error) {
    std::cerr << "gpt: " << error.what() << "\n";
    return 1;
  }
}
