/// Each meta kernel against the CPU kernel: the same outputs, and nothing else allocated. This program has no Python, so
/// the kernels are those of passes/meta.

#include "passes/meta/meta_kernels.h"

#include <set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>

#include "passes/meta/meta_allocator.h"

namespace recals {
namespace {

using at::MemoryFormat;
using c10::IValue;

/// One call. What is passed as an out= argument is an empty tensor.
struct Call {
  std::string name; ///< for messages
  std::string op; ///< "aten::flip"; with its overload, "aten::where.self"
  std::vector<IValue> arguments;
  bool temporaries = false; ///< the CPU kernel is made of other ops, and so is this one
};

// --- arguments ---------------------------------------------------------------------------------------------------------

at::Tensor f(at::IntArrayRef sizes) {
  return at::rand(sizes) * 0.8 + 0.1;
}

at::Tensor d(at::IntArrayRef sizes) {
  return f(sizes).to(at::kDouble);
}

at::Tensor last(at::IntArrayRef sizes) {
  return f(sizes).contiguous(sizes.size() == 5 ? MemoryFormat::ChannelsLast3d : MemoryFormat::ChannelsLast);
}

/// The two last dimensions are swapped in memory.
at::Tensor turned(at::IntArrayRef sizes) {
  return f(sizes).transpose(-1, -2).contiguous().transpose(-1, -2);
}

at::Tensor n(at::IntArrayRef sizes) {
  return at::zeros(sizes, at::kLong);
}

at::Tensor b(at::IntArrayRef sizes) {
  return at::zeros(sizes, at::kBool);
}

at::Tensor c(at::IntArrayRef sizes) {
  return at::complex(f(sizes), f(sizes));
}

at::Tensor out(at::ScalarType type = at::kFloat) {
  return at::empty({0}, type);
}

IValue ints(std::vector<int64_t> values) {
  return IValue(std::move(values));
}

IValue bools(std::vector<bool> values) {
  return IValue(std::move(values));
}

const IValue none;

// --- the table ---------------------------------------------------------------------------------------------------------

void convolutions(std::vector<Call>& calls) {
  const auto add = [&](const std::string& name,
                       const at::Tensor& x,
                       const at::Tensor& w,
                       int64_t stride,
                       bool transposed,
                       int64_t groups) {
    const size_t dims = x.dim() - 2;
    const auto each = [&](int64_t value) { return ints(std::vector<int64_t>(dims, value)); };
    const std::vector<IValue> settings{
        each(stride), each(1), each(1), transposed, each(transposed ? stride - 1 : 0), groups};
    const int64_t channels = transposed ? w.size(1) * groups : w.size(0);
    std::vector<IValue> forward{x, w, at::rand({channels}, x.options())};
    forward.insert(forward.end(), settings.begin(), settings.end());
    calls.push_back({"convolution_" + name, "aten::convolution", forward});
    const auto y = at::convolution(
        x,
        w,
        {},
        settings[0].toIntVector(),
        settings[1].toIntVector(),
        settings[2].toIntVector(),
        transposed,
        settings[4].toIntVector(),
        groups);
    for (const bool input : {true, false}) {
      std::vector<IValue> backward{at::ones_like(y), x, w, ints({channels})};
      backward.insert(backward.end(), settings.begin(), settings.end());
      backward.push_back(bools({input, true, true}));
      calls.push_back(
          {"convolution_backward_" + name + (input ? "" : "_of_the_weight"), "aten::convolution_backward", backward});
    }
  };
  add("2d", f({2, 3, 9, 8}), f({6, 3, 3, 3}), 2, false, 1);
  add("2d_channels_last", last({2, 3, 9, 8}), f({6, 3, 3, 3}), 1, false, 1);
  add("2d_channels_last_weight", f({2, 3, 9, 8}), last({6, 3, 3, 3}), 1, false, 1);
  add("2d_double", d({2, 3, 9, 8}), d({6, 3, 3, 3}), 1, false, 1);
  add("2d_one_image", f({1, 3, 9, 8}), f({6, 3, 3, 3}), 1, false, 1);
  add("2d_one_by_one", f({2, 4, 6, 6}), f({8, 4, 1, 1}), 1, false, 1);
  add("2d_depthwise", f({2, 4, 9, 8}), f({4, 1, 3, 3}), 1, false, 4);
  add("2d_depthwise_channels_last", last({2, 4, 9, 8}), f({4, 1, 3, 3}), 1, false, 4);
  add("1d", f({2, 3, 12}), f({6, 3, 3}), 1, false, 1);
  add("3d", f({2, 3, 5, 6, 7}), f({4, 3, 3, 3, 3}), 1, false, 1);
  add("3d_channels_last", last({2, 3, 5, 6, 7}), f({4, 3, 3, 3, 3}), 1, false, 1);
  add("2d_transposed", f({2, 6, 5, 5}), f({6, 3, 3, 3}), 2, true, 1);
  add("2d_transposed_channels_last", last({2, 6, 5, 5}), f({6, 3, 3, 3}), 2, true, 1);
  add("2d_transposed_grouped", f({2, 6, 5, 5}), f({6, 2, 3, 3}), 2, true, 2);
}

void norms(std::vector<Call>& calls) {
  const auto shapes = std::vector<std::pair<std::string, at::Tensor>>{
      {"", f({3, 4, 5, 6})},
      {"_channels_last", last({3, 4, 5, 6})},
      {"_rows", f({6, 4})},
      {"_3d", last({2, 4, 3, 4, 5})}};
  for (const auto& [name, x] : shapes) {
    const auto s = f({4});
    for (const bool training : {true, false}) {
      const auto suffix = name + (training ? "" : "_eval");
      calls.push_back(
          {"native_batch_norm" + suffix,
           "aten::native_batch_norm",
           {x, s, s, s.clone(), s.clone(), training, 0.1, 1e-5}});
      calls.push_back(
          {"native_batch_norm_backward" + suffix,
           "aten::native_batch_norm_backward",
           {x, x, s, s, s, training ? s : f({0}), training ? s : f({0}), training, 1e-5, bools({true, true, true})}});
    }
    calls.push_back(
        {"batch_norm_legit" + name,
         "aten::_native_batch_norm_legit",
         {x, s, s, s.clone(), s.clone(), true, 0.1, 1e-5}});
    calls.push_back(
        {"batch_norm_no_stats" + name, "aten::_native_batch_norm_legit.no_stats", {x, s, s, true, 0.1, 1e-5}});
    calls.push_back(
        {"batch_norm_with_update" + name, "aten::_batch_norm_with_update", {x, s, s, s.clone(), s.clone(), 0.1, 1e-5}});
    calls.push_back(
        {"batch_norm_update_stats" + name, "aten::batch_norm_update_stats", {x, s.clone(), s.clone(), 0.1}});
    calls.push_back(
        {"batch_norm_backward" + name,
         "aten::batch_norm_backward",
         {x, x, s, s, s, s, s, true, 1e-5, bools({true, true, true}), at::empty({0}, at::kByte)}});
    const int64_t positions = x.numel() / x.size(0) / 4;
    calls.push_back(
        {"native_group_norm" + name, "aten::native_group_norm", {x, s, s, x.size(0), 4, positions, 2, 1e-5}});
    calls.push_back(
        {"native_group_norm_backward" + name,
         "aten::native_group_norm_backward",
         {x, x, f({x.size(0), 2}), f({x.size(0), 2}), s, x.size(0), 4, positions, 2, bools({true, true, true})}});
  }
  const auto x = f({2, 3, 4});
  calls.push_back({"layer_norm", "aten::native_layer_norm", {x, ints({4}), f({4}), f({4}), 1e-5}});
  calls.push_back({"layer_norm_two", "aten::native_layer_norm", {x, ints({3, 4}), f({3, 4}), none, 1e-5}});
  calls.push_back(
      {"layer_norm_backward",
       "aten::native_layer_norm_backward",
       {x, x, ints({4}), f({2, 3, 1}), f({2, 3, 1}), f({4}), f({4}), bools({true, true, true})}});
  calls.push_back(
      {"layer_norm_backward_of_the_input",
       "aten::native_layer_norm_backward",
       {x, x, ints({4}), f({2, 3, 1}), f({2, 3, 1}), f({4}), f({4}), bools({true, false, false})}});
  calls.push_back({"weight_norm", "aten::_weight_norm_interface", {f({4, 3}), f({4, 1}), 0}});
  calls.push_back(
      {"weight_norm_backward",
       "aten::_weight_norm_interface_backward",
       {f({4, 3}), f({4, 3}), f({4, 1}), f({4, 1}), 0}});
}

void pooling(std::vector<Call>& calls) {
  for (const bool channels_last : {false, true}) {
    const auto make = channels_last ? &last : &f;
    const std::string suffix = channels_last ? "_channels_last" : "";
    const auto x = make({2, 3, 7, 8});
    const auto volume = make({2, 3, 6, 7, 8});
    calls.push_back({"adaptive_avg_pool2d" + suffix, "aten::_adaptive_avg_pool2d", {x, ints({3, 2})}});
    calls.push_back(
        {"adaptive_avg_pool2d_backward" + suffix, "aten::_adaptive_avg_pool2d_backward", {make({2, 3, 3, 2}), x}});
    calls.push_back({"adaptive_avg_pool2d_out" + suffix, "aten::adaptive_avg_pool2d.out", {x, ints({3, 2}), out()}});
    calls.push_back({"adaptive_avg_pool3d" + suffix, "aten::_adaptive_avg_pool3d", {volume, ints({3, 2, 2})}});
    calls.push_back(
        {"adaptive_avg_pool3d_backward" + suffix,
         "aten::_adaptive_avg_pool3d_backward",
         {make({2, 3, 3, 2, 2}), volume}});
    calls.push_back(
        {"max_pool3d" + suffix,
         "aten::max_pool3d_with_indices",
         {volume, ints({2, 3, 2}), ints({2}), ints({1}), ints({1}), true}});
    calls.push_back(
        {"max_pool3d_backward" + suffix,
         "aten::max_pool3d_with_indices_backward",
         {make({2, 3, 3, 3, 4}), volume, ints({2, 2, 2}), ints({}), ints({0}), ints({1}), false, n({2, 3, 3, 3, 4})}});
    calls.push_back({"max_unpool2d" + suffix, "aten::max_unpool2d", {x, n({2, 3, 7, 8}), ints({14, 16})}});
    calls.push_back({"reflection_pad2d" + suffix, "aten::reflection_pad2d", {x, ints({1, 2, 3, 2})}});
    calls.push_back(
        {"reflection_pad2d_backward" + suffix,
         "aten::reflection_pad2d_backward",
         {make({2, 3, 12, 11}), x, ints({1, 2, 3, 2})}});
    calls.push_back(
        {"replication_pad2d_backward" + suffix,
         "aten::replication_pad2d_backward",
         {make({2, 3, 12, 11}), x, ints({1, 2, 3, 2})}});
    calls.push_back(
        {"replication_pad3d_backward" + suffix,
         "aten::replication_pad3d_backward",
         {make({2, 3, 8, 9, 10}), volume, ints({1, 1, 1, 1, 1, 1})}});
    calls.push_back({"channel_shuffle" + suffix, "aten::channel_shuffle", {make({2, 6, 4, 4}), 3}});
    calls.push_back(
        {"affine_grid_generator" + suffix, "aten::affine_grid_generator", {f({2, 2, 3}), ints({2, 3, 4, 5}), false}});
    calls.push_back(
        {"affine_grid_generator_3d" + suffix,
         "aten::affine_grid_generator",
         {f({2, 3, 4}), ints({2, 3, 4, 5, 6}), true}});
    calls.push_back({"grid_sampler_2d" + suffix, "aten::grid_sampler_2d", {x, f({2, 4, 5, 2}), 0, 0, false}});
    calls.push_back(
        {"grid_sampler_2d_backward" + suffix,
         "aten::grid_sampler_2d_backward",
         {make({2, 3, 4, 5}), x, f({2, 4, 5, 2}), 0, 0, false, bools({true, true})}});
    calls.push_back({"grid_sampler_3d" + suffix, "aten::grid_sampler_3d", {volume, f({2, 4, 5, 3, 3}), 0, 0, false}});
    calls.push_back(
        {"grid_sampler_3d_backward" + suffix,
         "aten::grid_sampler_3d_backward",
         {make({2, 3, 4, 5, 3}), volume, f({2, 4, 5, 3, 3}), 0, 0, false, bools({true, true})}});
    calls.push_back({"flip" + suffix, "aten::flip", {x, ints({2, -1})}});
    calls.push_back({"roll" + suffix, "aten::roll", {x, ints({3}), ints({2})}});
  }
  calls.push_back({"adaptive_avg_pool2d_unbatched", "aten::_adaptive_avg_pool2d", {f({3, 7, 8}), ints({3, 2})}});
  calls.push_back(
      {"max_pool3d_unbatched",
       "aten::max_pool3d_with_indices",
       {f({3, 6, 7, 8}), ints({2}), ints({2}), ints({0}), ints({1}), false}});
  calls.push_back(
      {"max_unpool3d",
       "aten::max_unpool3d",
       {f({2, 3, 2, 2, 2}), n({2, 3, 2, 2, 2}), ints({4, 4, 4}), ints({2, 2, 2}), ints({0, 0, 0})}});
}

void pointwise(std::vector<Call>& calls) {
  const auto inputs = std::vector<std::pair<std::string, at::Tensor>>{
      {"", f({2, 3, 4, 5})}, {"_channels_last", last({2, 3, 4, 5})}, {"_turned", turned({2, 3, 4})}};
  for (const auto& [name, x] : inputs) {
    for (const std::string op : {"relu", "hardswish", "angle", "isnan", "log_sigmoid_forward", "abs", "logical_not"}) {
      calls.push_back({op + name, "aten::" + op, {x}});
    }
    calls.push_back({"hardtanh" + name, "aten::hardtanh", {x, -1, 1}});
    calls.push_back({"hardtanh_backward" + name, "aten::hardtanh_backward", {x, x, -1, 1}});
    calls.push_back({"hardswish_backward" + name, "aten::hardswish_backward", {x, x}});
    calls.push_back({"log_sigmoid_backward" + name, "aten::log_sigmoid_backward", {x, x, x}});
    calls.push_back({"logit" + name, "aten::logit", {x, 0.1}});
    calls.push_back({"nan_to_num" + name, "aten::nan_to_num", {x, 0.0, none, none}});
    calls.push_back({"logical_and" + name, "aten::logical_and", {x, x}});
    calls.push_back({"where_two" + name, "aten::where.self", {x > 0.5, x, x}});
    calls.push_back({"rsub" + name, "aten::rsub.Tensor", {x, x, 2}});
    calls.push_back({"floor_divide" + name, "aten::floor_divide", {x, x}});
    calls.push_back({"scalar_remainder" + name, "aten::remainder.Scalar_Tensor", {5, x}});
    calls.push_back({"native_dropout_backward" + name, "aten::native_dropout_backward", {x, x > 0.5, 2.0}, true});
    calls.push_back({"rrelu" + name, "aten::rrelu_with_noise", {x, x.clone(), 0.1, 0.3, true, none}});
    const at::Tensor weight = x.dim() == 4 ? f({1, 3, 1, 1}) : f({1, 3, 1});
    calls.push_back({"prelu" + name, "aten::_prelu_kernel", {x, weight}});
    calls.push_back({"prelu_backward" + name, "aten::_prelu_kernel_backward", {x, x, weight}});
  }
  calls.push_back({"glu_backward", "aten::glu_backward", {f({3, 4}), f({3, 8}), -1}});
  calls.push_back({"native_dropout", "aten::native_dropout", {f({3, 4}), 0.5, true}, true});
  calls.push_back({"angle_complex", "aten::angle", {c({3, 4})}});
  calls.push_back({"abs_complex", "aten::abs", {c({3, 4})}});
  calls.push_back({"conj_physical", "aten::_conj_physical", {c({3, 4})}});
  calls.push_back({"complex", "aten::complex", {f({3, 4}), f({3, 1})}});
  calls.push_back({"polar", "aten::polar", {f({3, 4}), f({3, 4})}});
  calls.push_back({"isnan_of_numbers", "aten::isnan", {n({3, 4})}});
  calls.push_back({"logical_or", "aten::logical_or", {b({3, 1}), n({4})}});
  calls.push_back({"logical_xor", "aten::logical_xor", {b({3, 1}), n({4})}});
  calls.push_back({"where_broadcast", "aten::where.self", {b({3, 1}), f({4}), f({})}});
  calls.push_back({"where_cast", "aten::where.self", {b({3, 4}), f({4}), d({3, 1})}, true});
  calls.push_back({"where_out", "aten::where.self_out", {b({3, 4}), f({4}), f({3, 1}), out()}});
  calls.push_back({"where_number", "aten::where.ScalarOther", {b({3, 4}), f({3, 4}), 0}, true});
  calls.push_back({"floor_divide_numbers", "aten::floor_divide", {n({3, 4}), n({4}) + 1}});
  calls.push_back({"floor_divide_out", "aten::floor_divide.out", {f({3, 4}), f({4}), out()}});
  calls.push_back({"shift_left", "aten::__lshift__.Tensor", {n({3, 4}), n({4})}});
  calls.push_back({"shift_left_by_number", "aten::__lshift__.Scalar", {n({3, 4}), 1}});
  calls.push_back({"shift_right", "aten::__rshift__.Tensor", {n({3, 4}), n({4})}});
  calls.push_back({"shift_right_by_number", "aten::__rshift__.Scalar", {n({3, 4}), 1}});
}

void reductions(std::vector<Call>& calls) {
  const auto x = f({3, 4, 5});
  for (const std::string op : {"var", "std", "var_mean", "std_mean"}) {
    calls.push_back({op, "aten::" + op + ".correction", {x, ints({1}), 1, false}});
    calls.push_back({op + "_kept", "aten::" + op + ".correction", {turned({3, 4, 5}), ints({0, -1}), 0, true}});
    calls.push_back({op + "_of_all", "aten::" + op + ".correction", {x, none, 1, false}, true});
  }
  calls.push_back({"var_complex", "aten::var.correction", {c({3, 4}), ints({1}), 1, false}, true});
  calls.push_back({"nansum", "aten::nansum", {x, ints({1}), true, none}});
  calls.push_back({"nansum_of_numbers", "aten::nansum", {n({3, 4}), none, false, none}});
  calls.push_back({"prod", "aten::prod", {x, none}});
  calls.push_back({"prod_of_numbers", "aten::prod", {b({3, 4}), none}});
  calls.push_back({"count_nonzero", "aten::count_nonzero.dim_IntList", {x, ints({1})}});
  calls.push_back({"count_nonzero_of_all", "aten::count_nonzero", {x, none}});
  for (const std::string op : {"max", "min", "median", "nanmedian"}) {
    calls.push_back({op, "aten::" + op, {x}});
  }
  calls.push_back({"median_dim", "aten::median.dim", {x, 1, false}});
  calls.push_back({"nanmedian_dim", "aten::nanmedian.dim", {x, 1, true}});
  calls.push_back({"kthvalue", "aten::kthvalue", {x, 2, 1, false}});
  calls.push_back({"mode", "aten::mode", {x, 1, true}});
  calls.push_back({"aminmax", "aten::_aminmax", {x}});
  calls.push_back({"aminmax_dim", "aten::_aminmax.dim", {x, 1, true}});
  const auto by_lengths = [](const at::Tensor& data, int64_t axis) {
    return std::vector<IValue>{data, "sum", n({3}), IValue(), IValue(), axis, /*unsafe=*/true, IValue()};
  };
  calls.push_back({"segments", "aten::segment_reduce", by_lengths(f({6, 4}), 0)});
  calls.push_back({"segments_turned", "aten::segment_reduce", by_lengths(turned({6, 4}), 0)});
  calls.push_back(
      {"segments_by_offsets", "aten::segment_reduce", {f({6}), "max", IValue(), IValue(), n({4}), -1, true, IValue()}});
  calls.push_back(
      {"segments_backward",
       "aten::_segment_reduce_backward",
       {f({3, 4}), f({3, 4}), turned({6, 4}), "sum", n({3}), IValue(), 0, IValue()},
       /*temporaries=*/true});
  calls.push_back({"logcumsumexp", "aten::logcumsumexp", {x, 1}});
  calls.push_back({"cummax", "aten::cummax", {x, 1}});
  calls.push_back({"cummin", "aten::cummin", {x, 1}});
  calls.push_back({"bucketize", "aten::bucketize.Tensor", {x, f({5}), true, false}});
  calls.push_back({"searchsorted", "aten::searchsorted.Tensor", {f({5}), x, false, false, none, none}});
  calls.push_back({"histc", "aten::histc", {x, 7, 0, 0}});
}

void indexing(std::vector<Call>& calls) {
  calls.push_back({"index_select", "aten::index_select", {f({4, 5, 6}), -2, n({3})}});
  calls.push_back({"index_select_turned", "aten::index_select", {turned({4, 5, 6}), 0, n({3})}});
  calls.push_back({"take", "aten::take", {f({4, 5}), n({2, 3})}});
  calls.push_back({"embedding", "aten::embedding", {f({9, 4}), n({2, 3}), -1, false, false}});
  calls.push_back({"embedding_renorm", "aten::embedding_renorm_", {f({9, 4}), n({2, 3}), 1.0, 2.0}});
  calls.push_back({"masked_scatter", "aten::masked_scatter_", {f({3, 4}), b({3, 4}), f({12})}});
  calls.push_back({"masked_scatter_backward", "aten::masked_scatter_backward", {f({3, 4}), b({3, 4}), ints({12})}});
  calls.push_back({"embedding_backward", "aten::embedding_dense_backward", {f({2, 3, 4}), n({2, 3}), 9, -1, false}});
  for (const int64_t mode : {0, 1, 2}) {
    for (const int64_t padding : {-1, 1}) {
      for (const std::string op : {"_embedding_bag", "_embedding_bag_forward_only"}) {
        const auto name = op + (padding < 0 ? "_" : "_padded_") + std::to_string(mode);
        calls.push_back({name, "aten::" + op, {f({9, 4}), n({6}), n({2}), false, mode, false, none, false, padding}});
      }
    }
    calls.push_back(
        {"embedding_bag_backward_" + std::to_string(mode),
         "aten::_embedding_bag_backward",
         {f({2, 4}), n({6}), n({2}), n({6}), n({2}), n({2, 4}), 9, false, mode, false, none, -1}});
  }
  calls.push_back(
      {"embedding_bag_last_offset",
       "aten::_embedding_bag",
       {f({9, 4}), n({6}), n({3}), false, 1, false, none, true, -1}});
  calls.push_back(
      {"embedding_bag_double", "aten::_embedding_bag", {d({9, 4}), n({6}), n({2}), false, 0, false, none, false, -1}});
  calls.push_back(
      {"embedding_bag_dense_backward",
       "aten::_embedding_bag_dense_backward",
       {f({2, 4}), n({6}), n({6}), n({2}), n({2, 4}), 9, false, 0, none, -1}});
  calls.push_back(
      {"embedding_bag_sample_weights",
       "aten::_embedding_bag_per_sample_weights_backward",
       {f({2, 4}), f({9, 4}), n({6}), n({2}), n({6}), 0, -1}});
  calls.push_back({"roll_two", "aten::roll", {f({4, 5}), ints({-1, 2}), ints({0, 1})}, true});
  calls.push_back({"roll_all", "aten::roll", {f({4, 5}), ints({3}), ints({})}, true});
  calls.push_back({"roll_nothing", "aten::roll", {f({0, 5}), ints({3}), ints({1})}});
  calls.push_back({"unfold_backward", "aten::unfold_backward", {f({3, 4, 2}), ints({3, 5}), 1, 2, 1}});
  calls.push_back(
      {"im2col", "aten::im2col", {f({2, 3, 6, 7}), ints({2, 3}), ints({1, 1}), ints({1, 0}), ints({2, 1})}});
  calls.push_back(
      {"im2col_unbatched", "aten::im2col", {f({3, 6, 7}), ints({2, 3}), ints({1, 2}), ints({1, 0}), ints({2, 1})}});
  calls.push_back(
      {"col2im",
       "aten::col2im",
       {f({2, 12, 30}), ints({6, 7}), ints({2, 2}), ints({1, 1}), ints({0, 0}), ints({1, 1})}});
  for (const std::string op : {"tril_indices", "triu_indices"}) {
    for (const int64_t offset : {-2, 0, 3}) {
      const auto name = op + "_" + std::to_string(offset + 2);
      calls.push_back({name, "aten::" + op, {4, 5, offset, none, none, c10::Device(at::kCPU), none}});
    }
  }
  calls.push_back({"assert_async", "aten::_assert_async", {at::ones({1})}});
  calls.push_back({"assert_async_with_message", "aten::_assert_async.msg", {at::ones({1}), "not so"}});
}

void losses(std::vector<Call>& calls) {
  const auto batch_first = f({3, 10, 5}).transpose(0, 1);
  for (const auto& log_probs : {f({10, 3, 5}), batch_first}) {
    const auto targets = at::ones({3, 4}, at::kLong);
    const auto inputs = ints({10, 9, 8});
    const auto lengths = ints({4, 3, 2});
    calls.push_back({"ctc", "aten::_ctc_loss", {log_probs, targets, inputs, lengths, 0, false}});
    calls.push_back(
        {"ctc_backward",
         "aten::_ctc_loss_backward",
         {f({3}), log_probs, targets, inputs, lengths, f({3}), f({3, 10, 9}), 0, false}});
  }
  for (const int64_t reduction : {0, 1, 2}) {
    const auto suffix = "_" + std::to_string(reduction);
    const auto x = f({3, 4});
    const auto image = f({2, 3, 4, 5});
    const auto grad = reduction == 0 ? f({3, 4}) : f({});
    const auto row_grad = reduction == 0 ? f({3}) : f({});
    calls.push_back({"bce" + suffix, "aten::binary_cross_entropy", {x, x, none, reduction}});
    calls.push_back({"bce_backward" + suffix, "aten::binary_cross_entropy_backward", {grad, x, x, none, reduction}});
    calls.push_back({"mse_backward" + suffix, "aten::mse_loss_backward", {grad, x, turned({3, 4}), reduction}});
    calls.push_back({"smooth_l1_backward" + suffix, "aten::smooth_l1_loss_backward", {grad, x, x, reduction, 1.0}});
    calls.push_back({"huber" + suffix, "aten::huber_loss", {x, x, reduction, 1.0}});
    calls.push_back({"huber_backward" + suffix, "aten::huber_loss_backward", {grad, x, x, reduction, 1.0}});
    calls.push_back({"nll2d" + suffix, "aten::nll_loss2d_forward", {image, n({2, 4, 5}), none, reduction, -100}});
    calls.push_back(
        {"nll2d_backward" + suffix,
         "aten::nll_loss2d_backward",
         {reduction == 0 ? f({2, 4, 5}) : f({}), image, n({2, 4, 5}), none, reduction, -100, f({})}});
    calls.push_back({"multi_margin" + suffix, "aten::multi_margin_loss", {x, n({3}), 1, 1, none, reduction}});
    calls.push_back(
        {"multi_margin_backward" + suffix,
         "aten::multi_margin_loss_backward",
         {row_grad, x, n({3}), 1, 1, none, reduction}});
    calls.push_back({"multilabel" + suffix, "aten::multilabel_margin_loss_forward", {x, n({3, 4}), reduction}});
    calls.push_back(
        {"multilabel_backward" + suffix,
         "aten::multilabel_margin_loss_backward",
         {row_grad, x, n({3, 4}), reduction, f({3, 4})}});
  }
}

/// Numbers as they would be after quantisation.
void quantization(std::vector<Call>& calls) {
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes, at::kInt); };
  for (const auto& x : {f({3, 4}), turned({3, 4})}) {
    calls.push_back({"tensor", "aten::fake_quantize_per_tensor_affine_cachemask", {x, 0.1, 0, 0, 255}});
    calls.push_back(
        {"tensors",
         "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
         {x, f({1}), zeros({1}), at::ones({1}), 0, 255}});
    calls.push_back(
        {"channels", "aten::fake_quantize_per_channel_affine_cachemask", {x, f({4}), zeros({4}), 1, 0, 255}});
    calls.push_back(
        {"learnable", "aten::_fake_quantize_learnable_per_tensor_affine", {x, f({1}), at::zeros({1}), 0, 255, 1.0}});
    calls.push_back(
        {"learnable channels",
         "aten::_fake_quantize_learnable_per_channel_affine",
         {x, f({4}), at::zeros({4}), 1, 0, 255, 1.0}});
    calls.push_back(
        {"learnable backward",
         "aten::_fake_quantize_learnable_per_tensor_affine_backward",
         {x, x, f({1}), at::zeros({1}), 0, 255, 1.0}});
    calls.push_back(
        {"learnable channels backward",
         "aten::_fake_quantize_learnable_per_channel_affine_backward",
         {x, x, f({4}), at::zeros({4}), 1, 0, 255, 1.0}});
  }
}

void the_rest(std::vector<Call>& calls) {
  calls.push_back({"dot", "aten::dot", {f({5}), f({5})}});
  calls.push_back({"vdot", "aten::vdot", {f({5}), f({5})}});
  calls.push_back({"addbmm", "aten::addbmm", {f({4}), f({2, 3, 5}), f({2, 5, 4}), 1, 1}});
  calls.push_back({"trace", "aten::trace", {f({3, 4})}});
  calls.push_back({"trace_of_numbers", "aten::trace", {at::zeros({3, 4}, at::kInt)}});
  calls.push_back({"cdist", "aten::_cdist_forward", {f({2, 1, 3, 4}), f({5, 6, 4}), 2.0, none}, true});
  calls.push_back(
      {"cdist_backward", "aten::_cdist_backward", {f({2, 3, 6}), f({2, 3, 4}), f({2, 6, 4}), 2.0, f({2, 3, 6})}, true});
  const auto triangular = at::eye(4) + at::zeros({2, 4, 4});
  calls.push_back({"solve_triangular", "aten::linalg_solve_triangular", {triangular, f({2, 4, 3}), true, true, false}});
  calls.push_back(
      {"solve_triangular_right", "aten::linalg_solve_triangular", {triangular, f({3, 4}), true, false, false}});
  calls.push_back({"lstsq", "aten::linalg_lstsq", {f({2, 5, 3}), f({2, 5, 2}), none, none}});
  calls.push_back({"lstsq wide", "aten::linalg_lstsq", {f({3, 5}), f({3, 2}), none, none}});
  for (const std::string driver : {"gels", "gelsd", "gelss"}) {
    calls.push_back({"lstsq " + driver, "aten::linalg_lstsq", {f({2, 5, 3}), f({2, 5, 2}), none, driver}});
  }
  calls.push_back({"matrix_exp", "aten::linalg_matrix_exp", {f({2, 4, 4})}, true});
  calls.push_back({"householder", "aten::linalg_householder_product", {f({2, 4, 3}), f({2, 3})}});
  calls.push_back({"multinomial", "aten::multinomial", {f({3, 4}), 2, true, none}});
  calls.push_back({"poisson", "aten::poisson", {turned({3, 4}), none}});
  calls.push_back({"binomial", "aten::binomial", {turned({3, 4}), turned({3, 4}), none}});
  calls.push_back({"gamma", "aten::_standard_gamma", {f({3, 4}), none}});
  calls.push_back({"dirichlet", "aten::_sample_dirichlet", {f({3, 4}), none}});
  calls.push_back({"bernoulli_out", "aten::bernoulli.out", {f({3, 4}), none, out()}});
  calls.push_back({"randperm_out", "aten::randperm.generator_out", {7, none, out(at::kLong)}});
  calls.push_back({"arange_out", "aten::arange.start_out", {2, 17, 4, out(at::kLong)}});
  calls.push_back({"arange_out down", "aten::arange.start_out", {5, -3, -2, out(at::kLong)}});
  calls.push_back({"arange_out of floats", "aten::arange.start_out", {0.5, 3.0, 0.25, out(at::kFloat)}});
  calls.push_back({"range_out", "aten::range.out", {0.5, 3.0, 0.25, out(at::kFloat)}});
  calls.push_back({"linspace_out", "aten::linspace.out", {0.0, 1.0, 9, out(at::kFloat)}});
  calls.push_back({"logspace_out", "aten::logspace.out", {0.0, 1.0, 9, 10.0, out(at::kFloat)}});
  calls.push_back({"fft_c2c", "aten::_fft_c2c", {c({3, 4, 5}), ints({1, 2}), 0, true}});
  calls.push_back({"fft_r2c", "aten::_fft_r2c", {f({3, 4, 5}), ints({1, 2}), 0, true}});
  calls.push_back({"fft_r2c_twosided", "aten::_fft_r2c", {f({3, 4, 5}), ints({2}), 0, false}});
  calls.push_back({"fft_c2r", "aten::_fft_c2r", {c({3, 4, 5}), ints({2}), 0, 8}});
  const auto q = f({2, 3, 7, 8});
  const auto k = f({2, 3, 5, 8});
  calls.push_back(
      {"flash_attention", "aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, k, 0.0, false, none, none}});
  const auto packed = f({2, 7, 3, 4, 8}).permute({2, 0, 3, 1, 4}); // as one projection makes query, key and value
  calls.push_back(
      {"flash_attention_packed",
       "aten::_scaled_dot_product_flash_attention_for_cpu",
       {packed[0], packed[1], packed[2], 0.0, true, none, none}});
  calls.push_back(
      {"flash_attention_backward_packed",
       "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       {at::rand_like(packed[0]),
        packed[0],
        packed[1],
        packed[2],
        at::rand_like(packed[0]),
        f({2, 7, 4}).transpose(1, 2),
        0.0,
        true,
        none,
        none}});
  calls.push_back(
      {"flash_attention_backward",
       "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       {q, q, k, k, q, f({2, 7, 3}).transpose(1, 2), 0.0, false, none, none}});
}

// --- running -----------------------------------------------------------------------------------------------------------

IValue on_meta(const IValue& value) {
  if (value.isDevice()) {
    return c10::Device(at::kMeta);
  }
  if (!value.isTensor()) {
    return value;
  }
  const auto& tensor = value.toTensor();
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

std::vector<at::Tensor> run(const std::string& op, std::vector<IValue> stack) {
  const auto dot = op.find('.');
  const auto overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.substr(0, dot).c_str(), overload.c_str());
  // Numbers where the schema wants a float or a Scalar are taken as they are; a float is not an int.
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isInt() && handle.schema().arguments().at(i).real_type()->kind() == c10::TypeKind::FloatType) {
      stack[i] = static_cast<double>(stack[i].toInt());
    }
  }
  at::NoGradGuard no_grad;
  handle.callBoxed(stack);
  std::vector<at::Tensor> outputs;
  for (const auto& value : stack) {
    outputs.push_back(value.toTensor());
  }
  return outputs;
}

std::string described(const at::Tensor& tensor) {
  std::ostringstream text;
  if (tensor.defined()) {
    text << tensor.scalar_type() << " " << tensor.sizes() << " strides " << tensor.strides() << " in "
         << tensor.storage().nbytes() << " bytes";
  } else {
    text << "undefined";
  }
  return text.str();
}

class Allocations : public MetaAllocationListener {
 public:
  void allocated(const MetaBlock& block) override {
    if (block.bytes > 0) {
      live.insert(block.id);
    }
  }
  void freed(const MetaBlock& block) override {
    if (live.erase(block.id) > 0) {
      ++temporaries;
    }
  }

  std::set<int64_t> live;
  int temporaries = 0;
};

void expect_the_outputs_of_the_cpu_kernel(const Call& call) {
  std::vector<IValue> arguments;
  for (const auto& argument : call.arguments) {
    arguments.push_back(on_meta(argument));
  }
  Allocations allocations;
  std::vector<at::Tensor> outputs;
  {
    MetaAllocationScope scope(allocations);
    outputs = run(call.op, std::move(arguments));
  }
  const auto expected = run(call.op, call.arguments);
  ASSERT_EQ(outputs.size(), expected.size());
  std::set<int64_t> returned;
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(described(outputs[i]), described(expected[i])) << "output " << i;
    const auto* block = outputs[i].defined() ? block_of(outputs[i].storage()) : nullptr;
    if (block != nullptr && block->bytes > 0) {
      returned.insert(block->id);
    }
  }
  EXPECT_EQ(allocations.live, returned);
  if (!call.temporaries) {
    EXPECT_EQ(allocations.temporaries, 0);
  }
}

// One test for a family, not for a call: ctest starts a process for each.
struct Family {
  std::string name;
  void (*add)(std::vector<Call>& calls);
};

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

class KernelsOnMeta : public testing::TestWithParam<Family> {};

TEST_P(KernelsOnMeta, MakeTheOutputsOfTheCpuKernelsAndNothingElse) {
  DeviceTable devices;
  devices.add(c10::kCPU);
  const MetaKernels kernels(devices);
  at::manual_seed(0);
  std::vector<Call> calls;
  GetParam().add(calls);
  for (const auto& call : calls) {
    SCOPED_TRACE(call.name + ": " + call.op);
    try {
      expect_the_outputs_of_the_cpu_kernel(call);
    } catch (const c10::Error& error) {
      ADD_FAILURE() << error.what_without_backtrace();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    KernelsOnMeta,
    testing::Values(
        Family{"Convolutions", &convolutions},
        Family{"Norms", &norms},
        Family{"PoolingAndImages", &pooling},
        Family{"Pointwise", &pointwise},
        Family{"Reductions", &reductions},
        Family{"Indexing", &indexing},
        Family{"Losses", &losses},
        Family{"Quantization", &quantization},
        Family{"TheRest", &the_rest}),
    [](const auto& info) { return info.param.name; });

} // namespace
} // namespace recals
