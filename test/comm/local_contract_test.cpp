#include "support/collectives_contract.hpp"
#include "support/local_ranks.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

TEST_CASE_TEMPLATE_INVOKE(contract_values, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_rank_order, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_nan_padding, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_empty, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_ranks, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_refusals, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_caller_stream, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_abort, LocalThreads, LocalManual);
TEST_CASE_TEMPLATE_INVOKE(contract_mismatch, LocalThreads, LocalManual);

}  // namespace
}  // namespace troupe::test
