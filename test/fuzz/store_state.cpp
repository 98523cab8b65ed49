// Any bytes as what happens to a store: sessions that come and go, requests that are sent once or
// again, time that passes. It stays within its limits, and each append is done once.
#include "troupe/comm/store/store_state.hpp"

#include "fuzz_target.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::store;
using std::chrono::milliseconds;
using test::must;

constexpr StoreLimits limits{
    .key_bytes = 4, .value_bytes = 64, .total_bytes = 4096, .connections = 3};

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool ended() const { return left_ == 0; }
  std::size_t below(std::size_t limit) {
    if (left_ == 0) {
      return 0;
    }
    --left_;
    return *data_++ % limit;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

// Which client a session belongs to is the client's business: here, its requests.
struct Client {
  bool connected = true;
  std::uint64_t last_number = 0;
  std::map<std::uint64_t, Request> open;            ///< not answered yet, by number
  std::map<std::uint64_t, std::int64_t> positions;  ///< of its appends, by number
};

class Run {
 public:
  explicit Run(Input input) : input_(input) {}

  void all() {
    while (!input_.ended()) {
      step();
      settle();
    }
    for (const auto& [session, client] : std::exchange(clients_, {})) {
      if (client.connected || state_.resume(session, now_)) {
        state_.end(session);
        settle();
      }
    }
    must(state_.waiting() == 0, "no wait outlives its client");
  }

 private:
  void step() {
    switch (input_.below(8)) {
      case 0:
        if (clients_.size() < limits.connections) {
          clients_.emplace(state_.open(now_), Client{});
        }
        return;
      case 1:
        now_ += milliseconds{input_.below(256)} * (input_.below(4) == 0 ? 1000 : 1);
        state_.advance(now_);
        must(!state_.next_due() || *state_.next_due() > now_, "what is due is done");
        return;
      case 2:
        if (const auto client = any(); client != clients_.end() && client->second.connected) {
          state_.lose(client->first, now_);
          client->second.connected = false;
        }
        return;
      case 3:
        come_back();
        return;
      case 4:
        if (const auto client = any(); client != clients_.end() && client->second.connected) {
          state_.end(client->first);
          clients_.erase(client);
        }
        return;
      default:
        if (const auto client = any(); client != clients_.end() && client->second.connected) {
          Request request = draw_request();
          request.number = ++client->second.last_number;
          send(*client, client->second.open.emplace(request.number, request).first->second);
        }
    }
  }

  void come_back() {
    const auto client = any();
    if (client == clients_.end()) {
      return;
    }
    if (!state_.resume(client->first, now_)) {
      must(!client->second.connected, "a connected client is known");
      clients_.erase(client);
      return;
    }
    client->second.connected = true;
    auto open = client->second.open;
    for (const auto& [number, request] : open) {
      send(*client, request);
    }
  }

  std::map<SessionId, Client>::iterator any() {
    const auto at = static_cast<std::ptrdiff_t>(input_.below(limits.connections));
    return at < static_cast<std::ptrdiff_t>(clients_.size()) ? std::next(clients_.begin(), at)
                                                             : clients_.end();
  }

  void send(std::pair<const SessionId, Client>& client, Request request) {
    request.settled_below = client.second.open.begin()->first;
    state_.submit(client.first, request, now_);
  }

  Request draw_request() {
    Request request;
    request.operation = static_cast<Operation>(1 + input_.below(11));
    const std::size_t keys = request.operation == Operation::revoke_will ? 0
                             : request.operation == Operation::wait      ? input_.below(4)
                                                                         : 1;
    for (std::size_t i = 0; i < keys; ++i) {
      const std::size_t which = input_.below(6);
      request.keys.push_back(which == 5 ? "too long" : std::string(1, "abcde"[which]));
    }
    request.value = std::string(input_.below(70), '1');
    request.timeout = milliseconds{input_.below(256)};
    request.amount = static_cast<std::int64_t>(input_.below(256)) - 128;
    request.from = input_.below(8);
    request.silence = milliseconds{input_.below(256)};
    request.grace = milliseconds{input_.below(256)};
    if (input_.below(2) == 1) {
      request.expected = std::string(input_.below(3), '1');
    }
    return request;
  }

  // Clients take what they get; some answers are lost with the connection.
  void settle() {
    for (const auto& [session, response] : state_.take_answers()) {
      const auto client = clients_.find(session);
      if (client == clients_.end() || !client->second.connected) {
        continue;
      }
      const auto request = client->second.open.find(response.number);
      must(request != client->second.open.end(), "only what was asked is answered");
      if (request->second.operation == Operation::append && response.status == Status::ok) {
        const auto [known, first] =
            client->second.positions.emplace(response.number, response.count);
        must(known->second == response.count, "an append has one position");
        if (first) {
          const std::pair place(request->second.keys[0], response.count);
          must(places_.emplace(place, std::pair(session, response.number)).second,
               "a position has one append");
        }
      }
      // Every fourth answer is lost, so that its request comes again.
      if (++answers_ % 4 != 0) {
        client->second.open.erase(request);
      }
    }
    must(state_.bytes() <= limits.total_bytes, "a store stays within its limits");
    must(state_.sessions() <= 2 * limits.connections, "sessions are bounded");
  }

  Input input_;
  StoreState state_{limits};
  TimePoint now_ = TimePoint{} + std::chrono::hours{1};
  std::map<SessionId, Client> clients_;
  std::map<std::pair<std::string, std::int64_t>, std::pair<SessionId, std::uint64_t>> places_;
  std::uint64_t answers_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Run(Input(data, size)).all();
  return 0;
}
