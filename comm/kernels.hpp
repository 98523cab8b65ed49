/// What the host computes on flat buffers: plain functions, done on return.
///
/// Pointers are aligned to their element, no more; `numel` may be 0, and pointers null then.
/// Results do not depend on the instruction set that is found at run time, except which of two NaNs
/// a sum of both keeps. Any thread. Cannot fail.
#pragma once

#include "troupe/core/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::kernels {

/// to[i] = from[i]; fp32 to bf16 as `to_bfloat16` does. Ranges are apart, or equal if the dtypes
/// are.
void cast(
    DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t numel) noexcept;

/// sum[i] += part[i], in fp32, rounded once to `sum_dtype`.
void accumulate(
    DType sum_dtype, void* sum, DType dtype, const void* part, std::int64_t numel) noexcept;

/// data[i] = data[i] / divisor, in fp32, rounded once to `dtype`.
void divide(DType dtype, void* data, std::int64_t numel, float divisor) noexcept;

/// Number of partial sums of `squared_norm`: element i goes to partial sum i % squared_norm_lanes,
/// which are then added pairwise: lane j and j + half, until one is left.
inline constexpr std::size_t squared_norm_lanes = 16;

/// *result += Σ data[i]², in fp64; *non_finite = true if an element is infinite or not a number.
void squared_norm(
    DType dtype, const void* data, std::int64_t numel, double* result, bool* non_finite) noexcept;

/// to[i] = ((s0[i] + s1[i]) + s2[i]) + …, in fp32; bf16 results are rounded once. A sum of one
/// source is a copy. sources  at least one, (numel) each to       (numel); apart from each source,
/// or equal to it
void sum(std::span<const void* const> sources, DType dtype, void* to, std::int64_t numel) noexcept;

/// memmove and memset that take null for no bytes.
void copy(void* to, const void* from, std::int64_t bytes) noexcept;
void zero(void* data, std::int64_t bytes) noexcept;

}  // namespace troupe::kernels
