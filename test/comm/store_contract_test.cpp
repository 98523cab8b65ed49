#include "support/store_contract.hpp"

#include "support/tcp_stores.hpp"
#include "troupe/comm/store/memory_store.hpp"

namespace troupe::test {
namespace {

struct MemoryStores {
  explicit MemoryStores(StoreLimits limits = {}) : hub(make_memory_store_hub(limits)) {}
  std::unique_ptr<Store> client() { return make_memory_store(hub); }
  std::shared_ptr<MemoryStoreHub> hub;
};

TROUPE_STORE_CONTRACT(MemoryStores, TcpStores);

}  // namespace
}  // namespace troupe::test
