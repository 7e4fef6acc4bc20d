// A file that fails when told to: at its n-th operation, in one of the ways a disk has.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "store/block_file.h"

namespace reprise::testing {

// Counts operations and says which one is to go wrong. Shared by everything that one store does.
class Faults {
 public:
  // The n-th operation from now on goes wrong, the first one being 0; and all after it if
  // `forever`.
  void arm(int n, bool forever = false) {
    left_ = n;
    forever_ = forever;
  }
  void disarm() { arm(-1); }
  // Whether this operation goes wrong.
  bool strikes() {
    ++operations_;
    int left = left_;
    while (left > 0 || (left == 0 && !forever_)) {
      if (left_.compare_exchange_weak(left, left - 1)) break;
    }
    if (left != 0) return false;
    ++struck_;
    return true;
  }
  int operations() const { return operations_; }
  int struck() const { return struck_; }

 private:
  std::atomic<int> operations_ = 0;
  std::atomic<int> struck_ = 0;
  std::atomic<int> left_ = -1;
  std::atomic<bool> forever_ = false;
};

class FaultyFile final : public store::BlockFile {
 public:
  enum class Fault { kError, kFull, kNothing, kFew, kFlippedBit };

  FaultyFile(std::unique_ptr<BlockFile> file, Faults& faults, Fault fault = Fault::kError)
      : file_(std::move(file)), faults_(faults), fault_(fault) {}

  std::size_t write(const std::byte* from, std::size_t bytes, std::int64_t offset) override {
    if (on_write) on_write();
    if (fault_ != Fault::kFlippedBit && faults_.strikes()) {
      if (const auto moved = fail(bytes); moved < bytes) {
        return moved == 0 ? 0 : file_->write(from, moved, offset);
      }
    }
    return file_->write(from, bytes, offset);
  }

  std::size_t read(std::byte* to, std::size_t bytes, std::int64_t offset) override {
    if (on_read) on_read(offset);
    if (!faults_.strikes()) return file_->read(to, bytes, offset);
    if (fault_ == Fault::kFlippedBit) {
      const std::size_t moved = file_->read(to, bytes, offset);
      to[0] ^= std::byte{1};
      return moved;
    }
    const std::size_t moved = fail(bytes);
    return moved == 0 ? 0 : file_->read(to, moved, offset);
  }

  std::string place() const override { return file_->place(); }

  // Called before each operation; set before the store is used.
  std::function<void()> on_write;
  std::function<void(std::int64_t offset)> on_read;

 private:
  // How many bytes the failing operation moves.
  std::size_t fail(std::size_t bytes) const {
    switch (fault_) {
      case Fault::kFull:
        throw std::system_error(ENOSPC, std::generic_category(), "write");
      case Fault::kNothing:
        return 0;
      case Fault::kFew:
        return bytes / 2;
      default:
        throw std::system_error(EIO, std::generic_category(), "moving");
    }
  }

  const std::unique_ptr<BlockFile> file_;
  Faults& faults_;
  const Fault fault_;
};

}  // namespace reprise::testing
