/// A store inside of one process, for worlds whose ranks are threads, and for tests.
#pragma once

#include "troupe/comm/store/store.hpp"

#include <memory>

namespace troupe {

class MemoryStoreHub;

/// What the clients of one store share. Outlives none of them: they keep what they need.
std::shared_ptr<MemoryStoreHub> make_memory_store_hub(StoreLimits limits = {});

/// One client. Its end without `revoke_will` makes its will come true, like that of a process.
std::unique_ptr<Store> make_memory_store(std::shared_ptr<MemoryStoreHub> hub);

}  // namespace troupe
