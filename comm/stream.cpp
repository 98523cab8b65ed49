#include "troupe/comm/stream.hpp"

namespace troupe {

namespace {

class CallerStream final : public Stream {
 public:
  const std::string& name() const override { return name_; }
  bool is_caller() const override { return true; }
  Event record() override { return {}; }
  void wait(Event event) override {
    if (!event.done()) {
      refuse("wait for an event of stream '" + event.stream->name() + "' that is not done");
    }
  }
  bool reached(std::uint64_t /*point*/) const override { return true; }
  void notify(std::function<void(const StreamReport&)> /*callback*/) override {
    refuse("call back");
  }
  void subscribe(Wakeable& /*waiter*/) override {}
  std::optional<Failure> failure() const override { return std::nullopt; }
  bool idle() const override { return true; }
  Result<void> recover() override { return {}; }

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(
        {.code = ErrorCode::misuse,
         .text = "the caller's stream cannot " + what +
                 ": it is the calling thread itself, and what is issued is done on return"});
  }

  std::string name_ = "caller";
};

}  // namespace

Stream& Stream::caller() {
  static CallerStream stream;
  return stream;
}

}  // namespace troupe
