// The file under a disk store: an interface, so that tests can put one in its place that fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace reprise::store {

// Offsets, lengths and memory addresses given to a BlockFile are multiples of this: direct access
// asks for the disk's sector, at most a page.
inline constexpr std::int64_t kBlockAlignment = 4096;

// Safe to use from several threads at once.
class BlockFile {
 public:
  BlockFile() = default;
  virtual ~BlockFile() = default;
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // Return how many bytes were moved, which may be fewer than asked for; zero at the end of the
  // file. Throw std::system_error.
  virtual std::size_t write(const std::byte* from, std::size_t bytes, std::int64_t offset) = 0;
  virtual std::size_t read(std::byte* to, std::size_t bytes, std::int64_t offset) = 0;

  // For texts.
  virtual std::string place() const = 0;
};

// A file without a name in `folder`. Throws StoreError.
std::unique_ptr<BlockFile> open_block_file(const std::string& folder);

}  // namespace reprise::store
