// The disk store over a file of the caller's: what disk_store() makes, and tests with faults.
#pragma once

#include <reprise/store.h>

#include <memory>

#include "store/block_file.h"

namespace reprise::store {

std::shared_ptr<Store> make_disk_store(const DiskStoreOptions& options,
                                       std::unique_ptr<BlockFile> file);

}  // namespace reprise::store
