#include "message.hpp"

#include <array>

namespace troupe::test {

namespace {

constexpr std::array kind_names{
    "trainer event", "gather",           "begin use",    "end use",  "evict",
    "contribute",    "reduce",           "sum replicas", "step end", "abandon",
    "launch",        "stream done",      "completed",    "failed",   "peer failed",
    "connect",       "register runtime", "unregister",   "tick",     "stop",
    "exit"};

template <class Message>
const Message* as(const caf::type_erased_tuple& message) {
  return message.match_elements<Message>() ? &message.get_as<Message>(0) : nullptr;
}

}  // namespace

Sent decode(const ActorTag& to, const caf::type_erased_tuple& message) {
  using Kind = Sent::Kind;
  Sent sent;
  sent.to = to;
  if (to.kind == ActorTag::Kind::bucket) {
    if (message.match_elements<BeginUse>()) {
      sent.kind = Kind::begin_use;
    } else if (message.match_elements<EndUse>()) {
      sent.kind = Kind::end_use;
    } else if (const auto* gather = as<Gather>(message)) {
      sent.kind = Kind::gather;
      sent.ticket = gather->ticket;
      sent.slot = gather->slot;
      sent.again = gather->again;
    } else if (const auto* completed = as<Completed>(message)) {
      sent.kind = Kind::completed;
      sent.ticket = completed->ticket;
      sent.failed = completed->failure.has_value();
    } else if (message.match_elements<Evict>()) {
      sent.kind = Kind::evict;
    } else if (const auto* contribute = as<Contribute>(message)) {
      sent.kind = Kind::contribute;
      sent.slot = contribute->gradient_slot;
    } else if (const auto* reduce = as<Reduce>(message)) {
      sent.kind = Kind::reduce;
      sent.ticket = reduce->ticket;
      sent.slot = reduce->gradient_slot;
    } else if (const auto* sum = as<SumReplicas>(message)) {
      sent.kind = Kind::sum_replicas;
      sent.ticket = sum->ticket;
    } else if (message.match_elements<StepEnd>()) {
      sent.kind = Kind::step_end;
    } else if (message.match_elements<Abandon>()) {
      sent.kind = Kind::abandon;
    } else if (message.match_elements<Stop>()) {
      sent.kind = Kind::stop;
    }
  } else if (const auto* event = as<TrainerEvent>(message)) {
    sent.kind = Kind::trainer_event;
    sent.event = event->kind;
    sent.unit = event->unit;
    sent.backward = event->backward;
    sent.bucket = event->bucket;
    sent.changed = event->changed;
    sent.reduces = event->reduces;
    sent.order = event->order;
  } else if (const auto* launch = as<Launch>(message)) {
    sent.kind = Kind::launch;
    sent.ticket = launch->call.ticket;
    sent.bucket = launch->bucket ? launch->call.bucket : no_bucket;
    sent.op = launch->call.op;
  } else if (const auto* done = as<StreamDone>(message)) {
    sent.kind = Kind::stream_done;
    sent.ticket = done->ticket;
    sent.failed = done->report.failure.has_value();
  } else if (message.match_elements<Tick>()) {
    sent.kind = Kind::tick;
  } else if (message.match_elements<Stop>()) {
    sent.kind = Kind::stop;
  } else if (message.match_elements<Failed>()) {
    sent.kind = Kind::failed;
  } else if (message.match_elements<PeerFailed>()) {
    sent.kind = Kind::peer_failed;
  } else if (message.match_elements<Connect>()) {
    sent.kind = Kind::connect;
  } else if (message.match_elements<RegisterRuntime>()) {
    sent.kind = Kind::register_runtime;
  } else if (message.match_elements<UnregisterRuntime>()) {
    sent.kind = Kind::unregister_runtime;
  }
  return sent;
}

std::string to_string(const ActorTag& tag) {
  std::string text = "rank " + std::to_string(tag.rank);
  if (tag.runtime > 1) {
    text += " runtime " + std::to_string(tag.runtime);
  }
  switch (tag.kind) {
    case ActorTag::Kind::supervisor:
      return text + " supervisor";
    case ActorTag::Kind::comm:
      return text + " comm";
    case ActorTag::Kind::scheduler:
      return text + " scheduler";
    case ActorTag::Kind::bucket:
      return text + " bucket " + std::to_string(tag.bucket);
  }
  return text;
}

std::string to_string(const Sent& sent) {
  std::string text = to_string(sent.to) + ": " + kind_names[static_cast<std::size_t>(sent.kind)];
  if (sent.kind == Sent::Kind::trainer_event) {
    text += std::string(", ") + to_string(sent.event);
    if (sent.event == TrainerEventKind::begin_use || sent.event == TrainerEventKind::end_use) {
      text += (sent.backward ? ", backward of unit " : ", forward of unit ") +
              std::to_string(sent.unit);
    } else if (sent.event == TrainerEventKind::updated) {
      text += " " + std::to_string(sent.bucket) + (sent.changed ? "" : ", not changed");
    } else if (sent.event == TrainerEventKind::begin_micro_batch) {
      text += sent.reduces ? "" : ", without a reduce";
    }
  }
  if (sent.kind == Sent::Kind::launch) {
    text += std::string(" of ") + to_string(sent.op);
    text += sent.bucket == no_bucket ? "" : " for bucket " + std::to_string(sent.bucket);
  }
  text += sent.again ? " again" : "";
  if (sent.ticket != 0) {
    text += ", ticket " + std::to_string(sent.ticket);
  }
  if (sent.slot != no_slot) {
    text += ", slot " + std::to_string(sent.slot);
  }
  return text + (sent.failed ? ", with a failure" : "");
}

}  // namespace troupe::test
