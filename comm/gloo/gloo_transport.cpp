#include "troupe/comm/gloo/gloo_transport.hpp"

#include "troupe/comm/gloo/gloo_communicator.hpp"
#include "troupe/comm/gloo/gloo_store.hpp"
#include "troupe/comm/gloo/local_address.hpp"
#include "troupe/comm/gloo/sigpipe.hpp"

#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

/// Gloo waits five times as long for a connection to a peer that has published its address.
constexpr std::chrono::milliseconds handshake_limit{6000};

/// Longer deadlines are as good as none, and could not be added to the time of day.
constexpr Duration timeout_max = std::chrono::hours{24 * 365};

Failure bad_configuration(std::string text) {
  return {.code = ErrorCode::bad_configuration, .text = std::move(text)};
}

std::shared_ptr<gloo::transport::Device> make_device(const GlooOptions& options) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.address;
  attributes.iface = options.address.empty() ? options.interface_name : "";
  if (attributes.hostname.empty() && attributes.iface.empty()) {
    throw Error(bad_configuration("Gloo needs an address or an interface of this host"));
  }
  if (attributes.iface.empty() ? !is_local_address(attributes.hostname)
                               : !is_local_interface(attributes.iface)) {
    throw Error(bad_configuration(
        "this host has no " + (attributes.iface.empty() ? "address '" + attributes.hostname + "'"
                                                        : "interface '" + attributes.iface + "'")));
  }
  const SigpipeBlocked sigpipe_blocked;  // for the thread that serves the connections
  try {
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& exception) {
    throw Error(
        bad_configuration(std::string("Gloo cannot communicate from here: ") + exception.what()));
  }
}

TransferTuning tuning_of(const GlooOptions& options) {
  return {.sum_order = options.sum_order,
          .segment_bytes = options.segment_bytes,
          .staging_bytes = options.staging_bytes};
}

std::string describe(const TransferTuning& tuning) {
  return std::string(tuning.sum_order == SumOrder::ranks ? "rank order" : "ring order") +
         ", segments of " + std::to_string(tuning.segment_bytes) + " bytes, staging of " +
         std::to_string(tuning.staging_bytes) + " bytes";
}

/// A name of bounded length: a key of the store is.
std::string key_prefix(std::uint64_t epoch, const GroupName& name) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const int rank : name.ranks) {
    hash = (hash ^ static_cast<std::uint64_t>(rank)) * 0x100000001b3U;
  }
  return "gloo/" + std::to_string(epoch) + "/" + std::to_string(name.ranks.size()) + "-" +
         std::to_string(hash) + "/" + std::to_string(name.channel) + "/";
}

class GlooTransport final : public GroupTransport {
 public:
  GlooTransport(GlooOptions options, Store& store)
      : options_(std::move(options)), store_(store), device_(make_device(options_)) {}

  std::unique_ptr<Communicator> connect(std::uint64_t epoch,
                                        const GroupName& name,
                                        WorldLink& link) override {
    std::shared_ptr<gloo::Context> context;
    if (name.ranks.size() > 1) {
      context = connect_members(epoch, name, link);
    }
    return make_gloo_communicator({.name = name, .tuning = tuning_, .timeout = options_.timeout},
                                  std::move(context), link, alarm_);
  }

 private:
  std::shared_ptr<gloo::Context> connect_members(std::uint64_t epoch,
                                                 const GroupName& name,
                                                 WorldLink& link) {
    const TimePoint begun = std::chrono::steady_clock::now();
    forget_before(epoch, begun + options_.timeout);
    GlooStore store(store_, link, key_prefix(epoch, name), begun + options_.timeout);
    const KeysKept keys_kept(*this, epoch, store);
    const SigpipeBlocked sigpipe_blocked;
    Suspicion suspicion;
    suspicion.kind = Suspicion::Kind::connection;
    suspicion.rank = link.rank();
    suspicion.group = name;
    try {
      check_tuning(store, link.rank());
      const auto member = std::ranges::find(name.ranks, link.rank()) - name.ranks.begin();
      auto context = std::make_shared<gloo::rendezvous::Context>(
          static_cast<int>(member), static_cast<int>(name.ranks.size()));
      context->setTimeout(
          std::min(handshake_limit,
                   std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout)));
      auto device = device_;
      context->connectFullMesh(store, device);
      return context;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) {
        throw;
      }
      suspicion.kind = Suspicion::Kind::timeout;
      suspicion.text = error.what();
    } catch (const std::exception& exception) {
      suspicion.text = exception.what();
    }
    suspicion.text = "could not connect to the other ranks: " + suspicion.text;
    suspicion.waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                              std::chrono::steady_clock::now() - begun)
                              .count();
    throw Error(link.suspect(std::move(suspicion)));
  }

  /// Keeps account of what a member sets, also if connecting fails.
  class KeysKept {
   public:
    KeysKept(GlooTransport& transport, std::uint64_t epoch, const GlooStore& store)
        : transport_(transport), epoch_(epoch), store_(store) {}
    KeysKept(const KeysKept&) = delete;
    KeysKept& operator=(const KeysKept&) = delete;
    ~KeysKept() {
      const std::lock_guard lock(transport_.mutex_);
      auto& keys = transport_.keys_[epoch_];
      keys.insert(keys.end(), store_.own_keys().begin(), store_.own_keys().end());
    }

   private:
    GlooTransport& transport_;
    const std::uint64_t epoch_;
    const GlooStore& store_;
  };

  /// All ranks are done with what was before this epoch; a world may see many.
  void forget_before(std::uint64_t epoch, TimePoint deadline) {
    for (;;) {
      std::vector<std::string> keys;
      {
        const std::lock_guard lock(mutex_);
        if (keys_.empty() || keys_.begin()->first >= epoch) {
          return;
        }
        keys = std::move(keys_.begin()->second);
        keys_.erase(keys_.begin());
      }
      for (const std::string& key : keys) {
        std::ignore = store_.erase(key, deadline);  // a store that is lost is told of elsewhere
      }
    }
  }

  /// Ranks that cut differently would bring messages of different sizes.
  void check_tuning(GlooStore& store, int rank) const {
    const std::string own = describe(tuning_);
    const std::string agreed = store.agree("tuning", own);
    if (agreed != own) {
      throw Error({.code = ErrorCode::bad_configuration,
                   .text = "rank " + std::to_string(rank) +
                           " communicates in another way than others: expected " + agreed +
                           ", actual " + own,
                   .rank = rank});
    }
  }

  const GlooOptions options_;
  const TransferTuning tuning_ = tuning_of(options_);
  Store& store_;
  const std::shared_ptr<gloo::transport::Device> device_;
  Alarm alarm_;

  std::mutex mutex_;                                        // guards what follows
  std::map<std::uint64_t, std::vector<std::string>> keys_;  ///< set in the store, by epoch
};

}  // namespace

std::unique_ptr<GroupTransport> make_gloo_transport(GlooOptions options, Store& store) {
  if (options.segment_bytes < 1 || options.staging_bytes < 0) {
    throw Error(bad_configuration("Gloo cannot use " + describe(tuning_of(options))));
  }
  options.timeout = std::clamp(options.timeout, Duration::zero(), timeout_max);
  return std::make_unique<GlooTransport>(std::move(options), store);
}

}  // namespace troupe
