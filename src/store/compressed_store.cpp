// The store around the forms of compressed_value.h: options, counts, and the streams of noise.
#include "reprise/store.h"

#include <reprise/error.h>

#include <array>
#include <atomic>
#include <utility>

#include "core/block_codes.h"
#include "core/lane_noise.h"
#include "store/compressed_value.h"

namespace reprise {
namespace {

const char* described(Compression compression) {
  switch (compression) {
    case Compression::kExact:
      return "exact";
    case Compression::kBfloat16:
      return "bf16";
    case Compression::kInt8:
      return "8 bits";
    case Compression::kInt4:
      return "4 bits";
  }
  return nullptr;
}

void check_compression(Compression compression, const char* where) {
  if (described(compression) != nullptr) return;
  throw UsageError(std::string(where) + " is " + std::to_string(static_cast<int>(compression)) +
                   "; it must be one of kExact, kBfloat16, kInt8 and kInt4");
}

const CompressedStoreOptions& checked_compression(const CompressedStoreOptions& options) {
  check_compression(options.compression, "CompressedStoreOptions.compression");
  constexpr std::int64_t kLeast = BlockCode::kLeastBlock;
  if (!BlockCode::may_have_blocks_of(options.block)) {
    throw UsageError("CompressedStoreOptions.block is " + std::to_string(options.block) +
                     " elements; it must be a multiple of " + std::to_string(kLeast) + " from " +
                     std::to_string(kLeast) + " to " + std::to_string(BlockCode::kLargestBlock) +
                     "; 256 is the default");
  }
  return options;
}

class CodedStore final : public CompressedStore {
 public:
  explicit CodedStore(const CompressedStoreOptions& options)
      : options_(checked_compression(options)) {}

  std::unique_ptr<ParkedTensor> park_as(const at::Tensor& tensor, Compression compression,
                                        CompressionResult* became) override;
  bool exact() const override { return options_.compression == Compression::kExact; }
  bool takes(c10::Device device) const override { return device.is_cpu(); }
  std::string name() const override {
    return std::string("compressed store (") + described(options_.compression) + ")";
  }

  Bytes compressed() const override { return Bytes(compressed_); }
  CompressedTotals totals(CompressedForm form) const override;
  std::uint64_t next_stream() const override { return next_stream_; }
  void set_next_stream(std::uint64_t stream) override { next_stream_ = stream; }

 protected:
  std::unique_ptr<ParkedTensor> park_flat(const at::Tensor& flat) override {
    return park_flat_as(flat, options_.compression, nullptr);
  }

 private:
  class Parked;
  struct Counts {
    std::atomic<std::int64_t> count = 0, before = 0, after = 0;
  };

  std::unique_ptr<ParkedTensor> park_flat_as(const at::Tensor& flat, Compression compression,
                                             CompressionResult* became);

  const CompressedStoreOptions options_;
  std::atomic<std::uint64_t> next_stream_ = 0;
  std::atomic<std::int64_t> compressed_ = 0;
  std::array<Counts, 6> totals_;
};

class CodedStore::Parked final : public ParkedTensor {
 public:
  Parked(CodedStore& store, const at::Tensor& flat, store::CompressedValue value)
      : store_(store), bytes_(static_cast<std::int64_t>(flat.nbytes())), value_(std::move(value)) {
    store_.compressed_ += value_.bytes().count;
    Counts& totals = store_.totals_[static_cast<std::size_t>(value_.form)];
    ++totals.count;
    totals.before += bytes_.count;
    totals.after += value_.bytes().count;
    if (moved()) store_.count_written(bytes_);
  }
  ~Parked() override { store_.compressed_ -= value_.bytes().count; }

  at::Tensor load() override {
    at::Tensor flat = store::decompress(value_);
    if (moved()) store_.count_read(bytes_);
    return flat;
  }
  Bytes bytes() const override { return bytes_; }

 private:
  bool moved() const { return value_.form != CompressedForm::kUncompressed; }

  CodedStore& store_;
  const Bytes bytes_;
  const store::CompressedValue value_;
};

CompressedTotals CodedStore::totals(CompressedForm form) const {
  const Counts& counts = totals_.at(static_cast<std::size_t>(form));
  return {.count = counts.count, .before = Bytes(counts.before), .after = Bytes(counts.after)};
}

std::unique_ptr<ParkedTensor> CodedStore::park_flat_as(const at::Tensor& flat,
                                                       Compression compression,
                                                       CompressionResult* became) {
  const std::uint64_t stream = substream(mixed(options_.seed), next_stream_++);
  store::CompressedValue value = store::compress(flat, compression, options_.block, stream);
  if (became != nullptr) {
    *became = {.form = value.form,
               .before = Bytes(static_cast<std::int64_t>(flat.nbytes())),
               .after = value.bytes(),
               .spread = store::is_lossy(value.form) ? store::spread(flat, options_.block) : 0};
  }
  return std::make_unique<Parked>(*this, flat, std::move(value));
}

std::unique_ptr<ParkedTensor> CodedStore::park_as(const at::Tensor& tensor, Compression compression,
                                                  CompressionResult* became) {
  check_compression(compression, "CompressedStore::park_as(): the compression");
  if (compression > options_.compression) {
    throw UsageError(name() + ": a tensor cannot be parked as " + described(compression) +
                     ", which changes more than the store says it does; make the store with the "
                     "compression that changes most of those that are needed");
  }
  return park_by(tensor,
                 [&](const at::Tensor& flat) { return park_flat_as(flat, compression, became); });
}

}  // namespace

std::shared_ptr<CompressedStore> compressed_store(const CompressedStoreOptions& options) {
  return std::make_shared<CodedStore>(options);
}

}  // namespace reprise
