#include "gloo_ranks.hpp"
#include "troupe/test/comm/support/collectives_contract.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

TEST_CASE_TEMPLATE_INVOKE(contract_values, GlooThreads, GlooRing);
TEST_CASE_TEMPLATE_INVOKE(contract_rank_order, GlooThreads, GlooSmallSegments);
TEST_CASE_TEMPLATE_INVOKE(contract_nan_padding, GlooThreads, GlooRing);
TEST_CASE_TEMPLATE_INVOKE(contract_empty, GlooThreads);
TEST_CASE_TEMPLATE_INVOKE(contract_ranks, GlooThreads);
TEST_CASE_TEMPLATE_INVOKE(contract_refusals, GlooThreads);
TEST_CASE_TEMPLATE_INVOKE(contract_caller_stream, GlooThreads);
TEST_CASE_TEMPLATE_INVOKE(contract_abort, GlooThreads, GlooSmallSegments);
TEST_CASE_TEMPLATE_INVOKE(contract_mismatch, GlooThreads, GlooSmallSegments);

}  // namespace
}  // namespace troupe::test
