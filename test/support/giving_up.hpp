/// D4 trainers that give up steps at given places and go on.
#pragma once

#include "d4.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace troupe::test {

/// Where a step is given up, in the order in which a step comes to them.
enum class Place : std::uint8_t {
  before_the_micro_batch,
  before_the_first_forward,
  in_a_forward,
  between_forwards,
  in_an_eval,
  before_the_first_backward,
  in_a_backward,
  between_backwards,
  behind_the_last_backward,
  in_a_second_micro_batch,
  before_finish_gradients,
  behind_finish_gradients,
};
inline constexpr std::size_t place_count = 12;

/// Thrown where a trainer gives up.
struct GivesUp : std::runtime_error {
  GivesUp() : std::runtime_error("bad batch") {}
};

/// A step of two micro-batches; `at` is called at each place. Before the update the ranks wait for
/// each other: nobody updates what another one gives up.
inline void step_with_places(D4Trainer& trainer, const std::function<void(Place)>& at) {
  Runtime& runtime = trainer.runtime;
  const auto units = static_cast<UnitId>(runtime.model().units().size());
  at(Place::before_the_micro_batch);
  {
    const auto micro_batch = runtime.micro_batch();
    at(Place::before_the_first_forward);
    for (UnitId unit = 0; unit < units; ++unit) {
      const Use use = runtime.forward(unit, trainer.stream);
      trainer.read(use, unit);
      if (unit == 1) {
        at(Place::in_a_forward);
      }
    }
    at(Place::between_forwards);
    {
      const auto eval = runtime.eval();
      trainer.forward(0);
      at(Place::in_an_eval);
    }
    at(Place::before_the_first_backward);
    for (UnitId unit = units; unit-- > 0;) {
      {
        const Use use = runtime.backward(unit, trainer.stream);
        trainer.read(use, unit);
        trainer.contribute(use, unit, 1.0F);
        if (unit == units - 2) {
          at(Place::in_a_backward);
        }
      }
      if (unit == 1) {
        at(Place::between_backwards);
      }
    }
    at(Place::behind_the_last_backward);
  }
  {
    const auto micro_batch = runtime.micro_batch();
    for (UnitId unit = 0; unit < units; ++unit) {
      trainer.forward(unit);
    }
    for (UnitId unit = units; unit-- > 0;) {
      trainer.backward(unit, 2.0F);
      if (unit == units - 1) {
        at(Place::in_a_second_micro_batch);
      }
    }
  }
  at(Place::before_finish_gradients);
  runtime.finish_gradients();
  at(Place::behind_finish_gradients);
  trainer.world.barrier();
  trainer.optimize();
}

/// Gives the step up, whoever began, and forgets what it has contributed.
inline void give_up(D4Trainer& trainer, const std::exception& why) {
  trainer.runtime.abort_step(why.what());
  trainer.oracle.drop();
}

/// One attempt; false if the step was given up.
inline bool try_step(D4Trainer& trainer, const std::function<void(Place)>& at) {
  try {
    step_with_places(trainer, at);
    return true;
  } catch (const std::exception& exception) {
    give_up(trainer, exception);
    return false;
  }
}

}  // namespace troupe::test
