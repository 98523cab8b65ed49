#include "troupe/comm/gloo/call_header.hpp"

#include <cstring>
#include <span>

namespace troupe {

namespace {

struct Fields {
  std::uint64_t ticket = 0;
  std::int64_t numel = 0;
  std::uint32_t runtime = 0;
  std::uint32_t bucket = 0;
  std::int32_t root = 0;
  std::uint32_t op = 0;
  std::uint32_t dtype = 0;
  std::uint32_t unused[3] = {};
};
static_assert(sizeof(Fields) == std::tuple_size_v<CallHeader>);
static_assert(sizeof(BucketId) <= sizeof(Fields::bucket));

bool has_root(Collective op) {
  return op == Collective::reduce || op == Collective::broadcast;
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of `value` changes half of all.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15U;

}  // namespace

CallHeader header_of(const CollectiveCall& call) {
  Fields fields;
  fields.ticket = call.ticket;
  fields.numel = call.numel;
  fields.runtime = call.runtime;
  fields.bucket = call.bucket;
  fields.root = has_root(call.op) ? call.root : 0;
  fields.op = static_cast<std::uint32_t>(call.op);
  fields.dtype = static_cast<std::uint32_t>(call.dtype);
  CallHeader header;
  std::memcpy(header.data(), &fields, sizeof(fields));
  return header;
}

LoggedCall call_of(const CallHeader& header) {
  Fields fields;
  std::memcpy(&fields, header.data(), sizeof(fields));
  LoggedCall call;
  call.op = static_cast<Collective>(fields.op);
  call.ticket = fields.ticket;
  call.runtime = fields.runtime;
  call.bucket = fields.bucket;
  call.dtype = static_cast<DType>(fields.dtype);
  call.numel = fields.numel;
  call.root = fields.root;
  return call;
}

std::uint64_t header_slot(std::uint64_t turn) {
  return mixed(turn + golden_ratio);
}

std::uint64_t first_slot(const CallHeader& header, std::uint64_t turn, Lane lane) {
  std::uint64_t hash = mixed(header_slot(turn) + static_cast<std::uint64_t>(lane));
  for (std::size_t begin = 0; begin < header.size(); begin += sizeof(hash)) {
    std::uint64_t word = 0;
    std::memcpy(&word, &header[begin], sizeof(word));
    hash = mixed((hash ^ word) + golden_ratio);
  }
  return hash;
}

}  // namespace troupe
