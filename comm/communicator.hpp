/// Collectives between the ranks of a group, asynchronous on a stream.
///
/// Every rank of the group launches the same collectives in the same order on a communicator, each
/// on one stream. The implementation compares op, ticket, runtime, bucket, dtype, numel and root of
/// all ranks before any payload moves (Local, Gloo); a difference fails the operation on every rank
/// with a `Failure` (mismatch) that names rank, ticket and both sides.
///
/// A buffer handed to a collective is not written, freed or reused by anyone before the operation
/// is done on this rank; a collective is done on a rank only when every peer has finished reading
/// that rank's buffers, also when it fails.
///
/// Thread rules: `launch` from one thread at a time (the comm actor's); `abort` from any thread.
/// Errors: of the call itself as a `Result`; later ones fail the stream. After a failure or an
/// abort the communicator is unusable: every later collective fails with the first failure.
#pragma once

#include "troupe/comm/stream.hpp"
#include "troupe/core/dtype.hpp"
#include "troupe/core/strategy.hpp"

#include <cstdint>
#include <string>

namespace troupe {

/// W is the number of ranks; rank r's part of a buffer of (W · n) elements is [r·n, (r+1)·n).
///
///     op              input        output       numel
///     all_gather      (n)          (W · n)      n; in place: input is the own part
///     reduce_scatter  (W · n)      (n)          n; in place: output is the own part
///     all_reduce      (n)          (n)          n; may be the same buffer
///     reduce          (n)          (n) on root  n; may be the same buffer
///     broadcast       (n) on root  (n)          n; may be the same buffer
///     barrier         -            -            0
///
/// Sums are taken in rank order, ((r0 + r1) + r2) + …, in fp32; bf16 results are rounded once.
struct CollectiveCall {
  Collective op = Collective::barrier;
  Ticket ticket = 0;
  std::uint32_t runtime = 0;  ///< whose bucket it is: of the rank's runtimes, from 1; 0: none's
  BucketId bucket = no_bucket;
  const char* label = "";  ///< bucket or purpose for messages; lives at least until completion
  DType dtype = DType::f32;
  const void* input = nullptr;
  void* output = nullptr;
  std::int64_t numel = 0;
  int root = 0;  ///< reduce and broadcast: rank within the group
};

/// "all_gather of bucket 3 'block.1' (ticket 17)"
std::string describe(const CollectiveCall& call);

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  ///< within the group
  virtual int size() const = 0;
  virtual Result<void> launch(const CollectiveCall& call, Stream& stream) = 0;
  /// Ends what is under way and all that follows, on every rank of the group, with `failure`.
  /// The first abort or failure of a world wins; later ones change nothing.
  virtual void abort(const Failure& failure) = 0;
};

}  // namespace troupe
