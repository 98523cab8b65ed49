/// Whatever made the world fail, and wherever the ranks were: after all have called abort_step,
/// they train on.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/experts.hpp"
#include "troupe/test/support/failing_world.hpp"
#include "troupe/test/support/giving_up.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <latch>
#include <thread>

namespace troupe::test {
namespace {

/// Runs `cause` once; it ends in an exception on every rank. Then all give up and train two steps.
void recovers_from(int ranks,
                   const std::function<void(D4Trainer&)>& cause,
                   const std::string& reason,
                   std::chrono::milliseconds timeout = failing_world_timeout) {
  const Model model = d4_model();
  Findings findings;
  std::latch updated(ranks);  // who is inside an update when others fail cannot go on
  const Outcome outcome = outcome_of(
      ranks,
      [&](World& world) {
        D4Trainer trainer(world, findings, model, d4_options());
        trainer.step();
        updated.arrive_and_wait();
        std::string heard;
        try {
          cause(trainer);
        } catch (const std::exception& exception) {
          heard = exception.what();
          give_up(trainer, exception);
        }
        findings.expect(contains(heard, reason),
                        "rank " + std::to_string(world.rank()) + " heard '" + heard + "'");
        trainer.step();
        trainer.step();
        trainer.expect_oracle();
      },
      timeout);
  CHECK(findings.text() == "");
  CHECK(outcome.text() == "");
}

TEST_CASE("after a mismatch") {
  recovers_from(
      3,
      [](D4Trainer& trainer) {
        const auto micro_batch = trainer.runtime.micro_batch();
        trainer.forward(0);
        std::array<UnitId, 3> order{1, 2, 3};
        if (trainer.world.rank() == 2) {
          order = {3, 2, 1};
        }
        for (const UnitId unit : order) {
          const auto use = trainer.runtime.forward(unit);
        }
        trainer.world.barrier();
      },
      "rank 2 launched another collective than ranks 0 and 1");
}

TEST_CASE("after a misuse of one rank, which the others do not hear of before it gives up") {
  recovers_from(
      3,
      [](D4Trainer& trainer) {
        if (trainer.world.rank() == 1) {
          trainer.runtime.finish_gradients();
        }
        trainer.micro_batch();
        trainer.world.barrier();
      },
      "Runtime::finish_gradients: the gradients are finished already");
}

TEST_CASE("after the timeout of a rank that was merely slow, and comes") {
  recovers_from(
      3,
      [](D4Trainer& trainer) {
        if (trainer.world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds{600});
        }
        trainer.micro_batch();
        trainer.world.barrier();
      },
      "ms for rank 1: expected", std::chrono::milliseconds{300});
}

TEST_CASE("after a computation that threw on a worker stream") {
  recovers_from(
      3,
      [](D4Trainer& trainer) {
        trainer.stream = &trainer.world.host_device().create_host_stream("compute");
        const auto micro_batch = trainer.runtime.micro_batch();
        for (UnitId unit = 0; unit < 4; ++unit) {
          trainer.forward(unit);
        }
        if (trainer.world.rank() == 1) {
          trainer.stream->run([] { throw std::runtime_error("bad kernel"); });
        }
        for (UnitId unit = 4; unit-- > 0;) {
          trainer.backward(unit);
        }
        trainer.world.barrier();
      },
      "stream 'compute': bad kernel");
}

TEST_CASE("after an error on the streams of the runtime itself") {
  for (const char* name : {"gather", "reduce"}) {
    recovers_from(
        2,
        [name](D4Trainer& trainer) {
          if (trainer.world.rank() == 1) {
            stream_of(trainer.world, name).run([] { throw std::runtime_error("bad link"); });
          }
          trainer.micro_batch();
          trainer.world.barrier();
        },
        "bad link");
  }
}

TEST_CASE("ranks that wait in collectives of the trainer's own hear of it there") {
  std::atomic<int> way{0};
  for (; way < 4; ++way) {
    recovers_from(
        3,
        [&](D4Trainer& trainer) {
          World& world = trainer.world;
          if (world.rank() == 0) {
            throw std::runtime_error("rank 0 has given up step 2: no data");
          }
          std::vector<float> own(1, 1.0F);
          std::vector<float> all(3);
          switch (way.load()) {
            case 0:
              world.all_reduce(own);
              break;
            case 1:
              world.broadcast(own, 0);
              break;
            case 2:
              world.all_gather(own, all);
              break;
            default:
              static_cast<void>(trainer.runtime.full_parameter("L1.w"));
          }
        },
        "rank 0 has given up step 2: ");
  }
}

TEST_CASE("ranks that are in finish_gradients hear of it there") {
  recovers_from(
      3,
      [](D4Trainer& trainer) {
        {
          const auto micro_batch = trainer.runtime.micro_batch();
          for (UnitId unit = 0; unit < 4; ++unit) {
            trainer.forward(unit);
          }
          if (trainer.world.rank() == 2) {
            throw std::runtime_error("a micro-batch, between uses: bad loss");
          }
          for (UnitId unit = 4; unit-- > 0;) {
            trainer.backward(unit);
          }
        }
        trainer.runtime.finish_gradients();
      },
      "a micro-batch, between uses: ");
}

TEST_CASE(
    "in a new epoch, too, a rank hears from its next call, even of one that launches nothing") {
  recovers_from(
      3,
      [](D4Trainer& trainer) {
        const auto give_up_by = [&](int rank) {
          const auto micro_batch = trainer.runtime.micro_batch();
          trainer.forward(0);
          if (trainer.world.rank() == rank) {
            throw std::runtime_error("bad batch");
          }
          const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{10};
          while (std::chrono::steady_clock::now() < deadline) {
            trainer.runtime.reshard();
          }
        };
        try {
          give_up_by(0);
        } catch (const std::exception& exception) {
          give_up(trainer, exception);
        }
        give_up_by(1);
      },
      "bad batch");
}

TEST_CASE("two ranks give up at once, for reasons of their own") {
  for (int round = 0; round < 20; ++round) {
    recovers_from(
        4,
        [](D4Trainer& trainer) {
          const auto micro_batch = trainer.runtime.micro_batch();
          trainer.forward(0);
          if (trainer.world.rank() % 2 == 1) {
            throw std::runtime_error("bad batch");
          }
          trainer.world.barrier();
        },
        "bad batch");
  }
}

TEST_CASE("a rank that constructs another runtime goes on without it") {
  recovers_from(
      3,
      [](D4Trainer& trainer) {
        if (trainer.world.rank() == 0) {
          throw std::runtime_error("rank 0 has given up step 2: no room");
        }
        const Runtime other(trainer.world, trainer.runtime.model());
      },
      "rank 0 has given up step 2: ");
}

TEST_CASE("a runtime that an exception has unwound is gone, the other one goes on") {
  recovers_from(
      2,
      [](D4Trainer& trainer) {
        Runtime other(trainer.world, d4_model(2, 50));
        other.initialize([](ParameterView) {});
        const auto micro_batch = other.micro_batch();
        const auto use = other.forward(0);
        if (trainer.world.rank() == 1) {
          throw std::runtime_error("rank 1 failed at forward of unit 0 'L0': bad batch");
        }
        trainer.world.barrier();
      },
      "rank 1 failed at forward of unit 0 'L0': bad batch");
}

TEST_CASE("one call is for all runtimes of a rank, and tickets start at 1 on all of them") {
  LaunchLog log(3);
  CHECK(on_ranks(
            3,
            [&](World& world, Findings& findings) {
              const Model small = d4_model(3, 100);
              const Model large = d4_model(5, 1000);
              D4Trainer first(world, findings, small, d4_options());
              D4Trainer second(world, findings, large, {.strategy = Strategy::owner_broadcast});
              for (int round = 0; round < 3; ++round) {
                try {
                  const auto of_first = first.runtime.micro_batch();
                  const auto of_second = second.runtime.micro_batch();
                  for (UnitId unit = 0; unit < 3; ++unit) {
                    first.forward(unit);
                    second.forward(unit);
                  }
                  if (world.rank() == round) {
                    throw GivesUp();
                  }
                  world.barrier();
                } catch (const std::exception& exception) {
                  (round == 1 ? first : second).runtime.abort_step(exception.what());
                  first.oracle.drop();
                  second.oracle.drop();
                }
                findings.expect(world.context().actors().next_ticket() < 20,
                                "tickets have not started anew");
                first.step();
                second.step();
              }
              first.expect_oracle();
              second.expect_oracle();
            },
            &log) == "");
  for (const auto& launches : log.of_rank) {
    // Per epoch 1, 2, 3, …, and the last epoch's are the same on all ranks.
    std::vector<LaunchRecord> epoch;
    int epochs = 0;
    for (const LaunchRecord& launch : launches) {
      if (launch.ticket == 1) {
        epoch.clear();
        ++epochs;
      }
      epoch.push_back(launch);
      CHECK(launch.ticket == epoch.size());
    }
    CHECK(epochs == 4);
    CHECK(epoch.size() > 25);
    const auto& of_rank_0 = log.of_rank[0];
    CHECK(std::equal(epoch.rbegin(), epoch.rend(), of_rank_0.rbegin()));
  }
}

TEST_CASE("replicas and experts go on") {
  Options options;
  options.mesh.ep = 2;
  CHECK(on_ranks(4, [&](World& world, Findings& findings) {
          const Model model = dense_and_experts(3);
          ExpertTrainer trainer(world, findings, model, options);
          for (int step = 0; step < 4; ++step) {
            try {
              const auto micro_batch = trainer.runtime.micro_batch();
              for (UnitId unit = 0; unit < 6; ++unit) {
                trainer.use(unit, false, true);
              }
              trainer.use(5, true, true);
              if (world.rank() == step) {
                throw GivesUp();
              }
              trainer.use(4, true, true);
              world.barrier();
            } catch (const std::exception& exception) {
              trainer.runtime.abort_step(exception.what());
            }
            trainer.micro_batch();
            trainer.runtime.finish_gradients();
            {
              Update update = trainer.runtime.update();
              trainer.optimize(update, true);
              trainer.optimize(update, false);
            }
            trainer.note_updated(4.0F, 4.0F);
          }
        }) == "");
}

TEST_CASE("the trace and the report go on over a step given up") {
  Trace trace;
  const Model model = d4_model();
  CHECK(on_ranks(
            2,
            [&](World& world, Findings& findings) {
              D4Trainer trainer(world, findings, model, d4_options());
              trainer.step();
              const Report before = trainer.runtime.report();
              try {
                const auto micro_batch = trainer.runtime.micro_batch();
                trainer.forward(0);
                if (world.rank() == 1) {
                  throw GivesUp();
                }
                world.barrier();
              } catch (const std::exception& exception) {
                give_up(trainer, exception);
              }
              const DeviceCounters& counters = world.device().counters();
              trainer.step();
              const Report after = trainer.runtime.report();
              findings.expect(after.schedule.uses > before.schedule.uses + 8, "uses are forgotten");
              findings.equal(after.steps, std::uint64_t{2}, "steps");
              const auto gather = static_cast<std::size_t>(Collective::all_gather);
              findings.expect(after.collectives[gather] > before.collectives[gather] + 4,
                              "launches are forgotten");
              findings.equal(after.collectives_last_step[gather], std::uint64_t{6},
                             "gathers of the last step");
              findings.expect(counters.unsharded_bytes_peak.load() <= 2 * 4096,
                              "more is counted as gathered than there are slots");
              trainer.expect_oracle();
            },
            nullptr, &trace) == "");
  for (int rank = 0; rank < 2; ++rank) {
    int last_failed = 0;
    for (const TraceCount& count : trace[rank].counts()) {
      CHECK(count.value >= 0);
      if (count.counter == TraceCounter::failed) {
        last_failed = static_cast<int>(count.value);
      }
    }
    CHECK(last_failed == 0);
  }
}

TEST_CASE("a use whose end is refused is closed all the same, so that the step can be given up") {
  std::latch waits{1};    // rank 0's other thread, in a barrier
  std::latch refused{1};  // the end of rank 0's use
  std::atomic<bool> first{true};
  WorldOptions options{.timeout = failing_world_timeout,
                       .on_failure = [](const std::string&) {},
                       .on_warning = [](const std::string&) {}};
  options.on_launch = [&](int rank, const LaunchRecord& launch) {
    if (rank == 0 && launch.op == Collective::barrier && first.exchange(false)) {
      waits.count_down();
    }
  };
  Findings findings;
  World::local(2, options).run([&](World& world) {
    D4Trainer trainer(world, findings, d4_model(2, 64), d4_options());
    Runtime& runtime = trainer.runtime;
    try {
      const auto micro_batch = runtime.micro_batch();
      Use use = runtime.forward(0);
      if (world.rank() == 0) {
        std::thread other([&] {
          try {
            world.barrier();
          } catch (const Error& error) {
            findings.expect(false, error.what());
          }
        });
        waits.wait();
        use.end();
        refused.count_down();
        other.join();
        static_cast<void>(runtime.forward(1));  // hears of the refusal
        findings.expect(false, "the end of a use was not refused beside another call");
      } else {
        refused.wait();
        world.barrier();
        use.end();
        world.barrier();  // hears that rank 0 gives up
        findings.expect(false, "rank 0 has not given up");
      }
    } catch (const Error& error) {
      give_up(trainer, error);
    }
    trainer.step();
    trainer.expect_oracle();
  });
  CHECK(findings.text() == "");
}

}  // namespace
}  // namespace troupe::test
