#include "support/collectives_contract.hpp"
#include "support/local_ranks.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

TEST_CASE_TEMPLATE_INVOKE(
    contract_values, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_rank_order, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_nan_padding, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_empty, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_ranks, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_refusals, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_caller_stream, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_abort, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);
TEST_CASE_TEMPLATE_INVOKE(
    contract_mismatch, LocalThreads, LocalManual, LocalThreadsEach, LocalManualEach);

}  // namespace
}  // namespace troupe::test
