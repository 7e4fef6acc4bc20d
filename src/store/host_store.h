// The host store over an engine of the caller's: what host_store() makes, and tests with a device
// of their own.
#pragma once

#include <reprise/store.h>

#include <memory>

#include "libtorch/memory/transfer_engine.h"

namespace reprise::store {

std::shared_ptr<Store> make_host_store(const HostStoreOptions& options,
                                       std::unique_ptr<libtorch::TransferEngine> engine);

}  // namespace reprise::store
