#include "troupe/comm/store/memory_store.hpp"

#include "troupe/comm/store/store_calls.hpp"
#include "troupe/comm/store/store_state.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

namespace troupe {
namespace {

// What one client is owed; guarded by the hub's mutex.
struct Mailbox {
  std::condition_variable arrived;
  std::set<std::uint64_t> open;  ///< numbers of the calls under way
  std::map<std::uint64_t, store::Response> answers;
};

}  // namespace

class MemoryStoreHub {
 public:
  explicit MemoryStoreHub(StoreLimits limits) : state(limits) {}

  void deliver() {
    for (auto& [session, response] : state.take_answers()) {
      if (const auto client = clients.find(session);
          client != clients.end() && client->second->open.contains(response.number)) {
        client->second->answers.insert_or_assign(response.number, std::move(response));
        client->second->arrived.notify_all();
      }
    }
  }

  std::mutex mutex;  // guards what follows
  store::StoreState state;
  std::map<store::SessionId, Mailbox*> clients;
};

namespace {

class MemoryStore final : public store::StoreCalls {
 public:
  explicit MemoryStore(std::shared_ptr<MemoryStoreHub> hub) : hub_(std::move(hub)) {
    const std::lock_guard lock(hub_->mutex);
    session_ = hub_->state.open(Clock::steady().now());
    hub_->clients.emplace(session_, &mailbox_);
  }
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;
  ~MemoryStore() override { close(); }

  void close() override {
    const std::lock_guard lock(hub_->mutex);
    if (hub_->clients.erase(session_) != 0) {
      hub_->state.end(session_);
      hub_->deliver();
      mailbox_.arrived.notify_all();
    }
  }

 private:
  std::string place() const override { return "the store in memory"; }

  Result<store::Response> call(store::Request request, TimePoint deadline) override {
    std::unique_lock lock(hub_->mutex);
    if (!hub_->clients.contains(session_)) {
      return failure(ErrorCode::network, request, "the store was closed");
    }
    const std::uint64_t number = ++last_number_;
    mailbox_.open.insert(number);
    request.number = number;
    request.settled_below = *mailbox_.open.begin();
    hub_->state.submit(session_, request, Clock::steady().now());
    hub_->deliver();
    while (!mailbox_.answers.contains(number) && hub_->clients.contains(session_)) {
      if (mailbox_.arrived.wait_until(lock, deadline) == std::cv_status::timeout) {
        hub_->state.advance(Clock::steady().now());
        hub_->deliver();
      }
    }
    mailbox_.open.erase(number);
    auto answer = mailbox_.answers.extract(number);
    if (answer.empty()) {
      return failure(ErrorCode::network, request, "the store was closed");
    }
    return std::move(answer.mapped());
  }

  const std::shared_ptr<MemoryStoreHub> hub_;
  store::SessionId session_ = 0;
  Mailbox mailbox_;
  std::uint64_t last_number_ = 0;  // guarded by the hub's mutex
};

}  // namespace

std::shared_ptr<MemoryStoreHub> make_memory_store_hub(StoreLimits limits) {
  return std::make_shared<MemoryStoreHub>(limits);
}

std::unique_ptr<Store> make_memory_store(std::shared_ptr<MemoryStoreHub> hub) {
  return std::make_unique<MemoryStore>(std::move(hub));
}

}  // namespace troupe
