// Every kind of tensor and of argument that an operator may be given: handled, or left alone and
// never dropped; in either case results are bitwise the plain ones.

#include <ATen/NativeFunctions.h>
#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using testing::is_right_when_all_is_dropped;
using testing::leaf;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

TEST(Values, ListsOfTensors) {
  const Tensor x = leaf({4, 6}), w = leaf({6, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensors rows = x.sin().unbind(0);
        const Tensor stacked = at::stack({rows[2], rows[0], rows[2]});
        const Tensors parts = at::cat({stacked, x.exp()}).tensor_split(3);
        const Tensor product = at::linalg_multi_dot({stacked, w, w.t()});
        return parts[0].sum() * product + at::einsum("ij,jk,kl->il", {stacked, w, w}) +
               at::block_diag({parts[1], parts[2]}).cos().sum();
      },
      {x, w}));
}

TEST(Values, ListsThatAreWrittenTo) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    Tensors list;
    for (int i = 0; i < 3; ++i) list.push_back(at::randn({3, 4}).exp());
    const Tensors before = at::_foreach_sin(list);
    at::_foreach_add_(list, before, 2);
    at::_foreach_mul_(list, 0.5);
    Tensors sums = at::_foreach_addcmul(list, before, before, 1.5);
    at::_foreach_copy_(sums, before);
    list.insert(list.end(), sums.begin(), sums.end());
    list.push_back(at::_foreach_norm(list)[1]);
    return list;
  }));
}

TEST(Values, OptionalTensorsInLists) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.exp();
        const Tensor columns = (h.detach().sum(0) * 100).to(at::kLong).remainder(6);
        const Tensor picked = h.index({torch::indexing::Slice(), columns});
        const c10::List<std::optional<Tensor>> second{std::nullopt, columns};
        const Tensor put = h.sin().index_put(second, picked.cos(), /*accumulate=*/true);
        Tensor changed = h * 1;
        changed.index_put_({columns.narrow(0, 0, 2).remainder(4)}, picked.narrow(0, 0, 2));
        return put * changed + h.masked_select(h.detach() > 1).sum();
      },
      {x}));
}

TEST(Values, OutVariants) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}).sin();
    Tensor out = x * 2, fresh = at::empty({0}), wide = x.repeat({2, 1}).cos();
    at::exp_out(out, x);
    at::mul_out(fresh, x, out);
    Tensor part = wide.narrow(0, 1, 4);
    at::add_out(part, out, x);
    at::mul_out(out, out, x);  // also an input
    Tensor values = at::empty({4, 2}), indices = at::empty({4, 2}, at::kLong);
    at::topk_out(values, indices, out, 2, 1);
    Tensor all = at::empty({8, 6});
    at::cat_out(all, {out, fresh});
    Tensor zeros = x.exp();
    at::zeros_out(zeros, {4, 6});
    return Tensors{out, fresh, wide, values, indices, all, zeros, zeros + out};
  }));
}

TEST(Values, ResultsThatAreOrShareAnArgument) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.exp();
        const auto [same, mask] = at::native_dropout(h, 0.5, /*train=*/false);
        const Tensors parts = at::unsafe_split(h.sin(), 2, 1);
        Tensor shared = at::_unsafe_view(h.cos(), {6, 4});
        shared.mul_(2);
        return same.sum() * parts[1] + shared.sum() + h.to(at::kFloat).contiguous().sum();
      },
      {x}));
}

TEST(Values, ResizedAndSetTensors) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6});
    Tensor grown = x.exp(), shrunk = x.sin(), moved = x.cos(), given = x.tanh();
    const Tensor of_grown = grown.sin(), of_given = given.exp(), of_moved = moved.exp();
    grown.resize_({8, 6});
    grown.narrow(0, 4, 4).copy_(x);
    shrunk.resize_({2, 6});
    moved.set_(given);
    moved.mul_(2);
    const Tensor root = at::rand({4, 6});
    const Tensor of_root = root.exp();
    Tensor also = at::empty({0});
    also.set_(root);
    const Tensor reads = of_root.sin();
    also.add_(1);
    Tensor data = x.exp();
    data.set_data(given);
    data.t_().unsqueeze_(0);
    return Tensors{grown,
                   shrunk,
                   moved,
                   given,
                   of_grown,
                   of_given,
                   of_moved,
                   of_root,
                   reads,
                   root,
                   also,
                   data,
                   data.exp() * moved.t()};
  }));
}

TEST(Values, SparseTensorsAndWhatTheyAreMadeOf) {
  const Tensor x = leaf({5}), w = leaf({6, 3});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor at_ = at::tensor({0, 1, 2, 3, 3, 0, 1, 2, 4, 5}, at::kLong).view({2, 5}) * 1;
        const Tensor values = x.exp();
        const Tensor sparse = at::sparse_coo_tensor(at_, values, {4, 6});
        const Tensor product = sparse.mm(w.sin());
        const Tensor dense = sparse.to_dense();
        return product.exp().sum() + dense.cos().sum() + sparse.coalesce().values().sin().sum() +
               values.sin();
      },
      {x, w}));
}

TEST(Values, ASparseTensorThatIsWrittenChangesWhatItIsMadeOf) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor at_ = at::arange(10).remainder(5).view({2, 5}) * 1;
    const Tensor made = at::randn({5}).exp(), root = at::randn({5});
    Tensor of_made = at::_sparse_coo_tensor_unsafe(at_, made, {5, 5});
    Tensor of_root = at::_sparse_coo_tensor_unsafe(at_, root, {5, 5});
    const Tensor a = made.sin(), b = root.sin();
    of_made.mul_(3);
    of_root.mul_(3);
    Tensor csr = at::rand({4, 4}).relu().to_sparse_csr();
    const Tensor c = csr.values().exp();
    csr.mul_(2);
    return Tensors{made,  root,          a * 1, b * 1, of_made.to_dense(), of_root.to_dense(),
                   c * 1, csr.to_dense()};
  }));
}

TEST(Values, NestedQuantizedAndMkldnnTensors) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}), h = x.exp();
    const Tensor nested = at::_nested_tensor_from_tensor_list({h.narrow(0, 0, 2).clone(), x.sin()});
    const Tensor padded = at::nested_to_padded_tensor(nested * 2, 0).cos();
    const Tensor q = at::quantize_per_tensor(h, 0.1, 3, at::kQInt8);
    const Tensor back = q.dequantize().sin() + q.int_repr().to(at::kFloat);
    Tensors result{padded * 1, back * 1, nested.unbind()[0] * h.narrow(0, 0, 2)};
    if (at::globalContext().hasMKLDNN()) {
      const Tensor opaque = h.to_mkldnn();
      result.push_back((opaque.relu().to_dense() + h).sin());
    }
    return result;
  }));
}

TEST(Values, ComplexTensorsAndTheirConjugateAndNegativeViews) {
  const Tensor re = leaf({4, 6}), im = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor z = at::complex(re.exp(), im.sin());
        const Tensor product = z.conj().mm((z * 2).t()) + at::imag(z.conj()).sum();
        Tensor changed = z * 3;
        changed.conj().narrow(0, 0, 2).mul_(2);
        at::imag(changed.conj()).select(0, 3).add_(1);
        const Tensor real = at::view_as_real(changed.conj().resolve_conj());
        return at::real(product).sum() * real + at::imag(z.conj()).mul(at::real(z)).sum() +
               at::view_as_real(at::conj_physical(z)).sum();
      },
      {re, im}));
}

TEST(Values, TensorsWithoutElements) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor none = x.narrow(0, 0, 0).exp();
        const Tensor h = at::cat({none.sin(), x.exp()});
        Tensor empty = at::empty({0, 6});
        empty.copy_(none.detach());
        empty.resize_({4, 6}).copy_(h.detach());
        return (h * empty).mm(at::cat({none.t(), x.t()}, 1).cos()) + none.sum();
      },
      {x}));
}

TEST(Values, TensorsWithoutElementsAreNeverDropped) {
  const Tensor x = leaf({4, 6});
  BudgetOptions options = paranoid();
  options.min_bytes = Bytes(0);
  EXPECT_TRUE(does_the_same_when_all_is_dropped(
      [&] {
        const Tensor none = x.narrow(0, 0, 0) * 2;
        const Tensor y = at::cat({x.sin(), none + 1}).tanh();
        return Tensors{y, none};
      },
      options));
}

// As libraries of operators call them.
TEST(Values, CompositesBelowAutograd) {
  const Tensor x = at::randn({6, 8});
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const Tensor turned = x.sin().t(), strided = x.exp().slice(1, 0, 8, 2);
    const at::AutoDispatchBelowAutograd below;
    return Tensors{turned.reshape({-1}), turned.contiguous(),         turned.to(at::kDouble),
                   turned.flatten(),     strided.reshape({4, 6}) * 2, at::linear(strided, strided)};
  }));
}

TEST(Values, TensorsOfOtherDevices) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.exp();
        const Tensor shape = at::empty({4, 6}, at::kMeta).sin();
        EXPECT_TRUE((h.detach().to(at::kMeta) * shape).is_meta());
        const Tensor like = at::ones_like(shape, at::TensorOptions().device(at::kCPU));
        return h.sin() * like;
      },
      {x}));
}

TEST(Values, InferenceTensors) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.exp();
        Tensor factor;
        {
          const c10::InferenceMode inference;
          factor = at::linear(h, x.detach().narrow(0, 0, 1).sin()).cos();
          factor.add_(1);
        }
        return h + h.detach() * factor.sum().item<float>();
      },
      {x}));
}

TEST(Values, StridesAreKept) {
  const Tensor image = leaf({2, 3, 4, 5});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast).exp();
        EXPECT_TRUE(last.is_contiguous(at::MemoryFormat::ChannelsLast));
        const Tensor h = last.sin();
        EXPECT_EQ(h.strides(), last.strides());
        const Tensor expanded = h.sum(3, true).expand({2, 3, 4, 5}).cos();
        const Tensor windows = h.flatten().unfold(0, 7, 2).exp();  // overlapping
        return at::max_pool2d(h * expanded, 2).sum() * windows +
               h.permute({3, 1, 0, 2}).tanh().flatten().as_strided({3, 4}, {2, 1}, 3).sum();
      },
      {image}));
}

TEST(Values, DataThatTheHostReads) {
  const Tensor x = leaf({6, 6});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = x.exp();
        const auto [values, inverse, counts] = at::_unique2(h.detach().round(), true, true, true);
        Tensor y = h * values.size(0);
        if (h.sum().item<float>() > 0) y = y + inverse;
        if (at::is_nonzero(h.detach().max())) y = y.sin();
        if (!h.equal(y)) y = y + counts.sum();
        for (int i = 0; i < static_cast<int>(h[0][0].item<float>()) % 3; ++i) y = y.cos();
        const Tensor where = at::nonzero(h.detach() > 1);
        return y * where.size(0) + h.index({where.select(1, 0), where.select(1, 1)}).sum();
      },
      {x}));
}

}  // namespace
}  // namespace reprise
