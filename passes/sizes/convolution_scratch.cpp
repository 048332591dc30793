#include "passes/sizes/scratch.h"

/// Note [oneDNN convolutions]
/// A convolution on CPU goes through oneDNN, which works on copies in a layout of channel blocks of 16: input, weight and
/// output are each copied, channels rounded up to 16 (an input of at most 3 channels is read as it is, grouped
/// convolutions keep their channels).
///   forward:            input' + weight' + output' and a scratchpad are live, then output' and output
///   backward, input:    grad' + weight' + input' and a scratchpad, then input' and the gradient (strided: one copy more)
///   backward, weight:   grad' + input' + weight' and a scratchpad, then weight' and the gradient
/// A transposed convolution is the input's backward of a plain one, and the other way round.
///
/// Channels-last tensors are worked on as they are; what is copied then are weights (two or three times).
///
/// Where no blocked kernel fits, oneDNN lays out columns (im2col) and multiplies; nothing else is copied then, but for the
/// weight's gradient each thread has four weights beside its columns, unless the positions are so many that all threads
/// share one.
///
/// A kernel as large as its input makes oneDNN multiply matrices instead, on weights in another order.
///
/// Both the layouts and the conditions were measured over the convolutions of two dozen networks and a grid of kernel
/// sizes, dilations and groups, on one, two and four threads (AVX-512). Scratchpads are bounds.
///
/// Note [Convolutions without oneDNN]
/// Torch has kernels of its own for other dtypes, for one small sample, and on one thread for 1x1 kernels. They lay out the
/// columns of the whole batch (of a sample, if dilated) and multiply; a 1x1 kernel needs no columns, and neither does the
/// input's gradient in two dimensions. Groups are worked on one by one, and their results put together at the end.

#include <algorithm>

namespace recals {

namespace {

constexpr int64_t kBlock = 16;
constexpr int64_t kFewest = 32 * 1024; ///< scratchpads do not get smaller with the work
constexpr int64_t KiB = 1024;
constexpr int64_t MiB = 1024 * KiB;

/// The sizes that the rules speak of, of a plain convolution or of the one that a transposed convolution turns around.
struct Shape {
  int64_t in = 0; ///< bytes
  int64_t weight = 0;
  int64_t out = 0;
  int64_t in_blocked = 0; ///< bytes of the copies
  int64_t weight_blocked = 0;
  int64_t weight_rows_blocked = 0; ///< of an input that is read as it is: its few channels are not padded
  int64_t out_blocked = 0;
  int64_t columns = 0; ///< of one sample and group
  int64_t strided_row = 0; ///< what a thread needs for the input's gradient of a strided convolution
  int64_t gathered = 0; ///< what a thread needs for a strided 1x1 convolution
  int64_t positions = 1; ///< of the output
  int64_t samples = 1; ///< that threads may share, by sample and group
  bool depthwise = false;
  bool halves = false; ///< 16-bit floats
  bool channels_last = false;
  bool strided = false;
  bool few_channels = false; ///< the input is read as it is
  bool by_columns_out = false; ///< forward
  bool by_columns_in = false; ///< gradient of the input
  bool by_columns_weight = false; ///< gradient of the weight
  bool whole_input = false; ///< the kernel is as large as the input
  bool solid = false; ///< three dimensions
};

/// Whose kernel runs: torch's choice, which on one thread may be another.
enum class Library { kOneDnn, kEither, kNative };

int64_t blocked(const at::Tensor& activation) {
  const int64_t channels = activation.size(1);
  return channels == 0 ? 0 : nbytes(&activation) / channels * round_up(channels, kBlock);
}

/// Elements of an image of `activation` with a border of two on each side, channels in blocks.
int64_t bordered(const at::Tensor& activation) {
  int64_t elements = round_up(activation.size(1), kBlock);
  for (int64_t d = 2; d < activation.dim(); ++d) {
    elements *= activation.size(d) + 4;
  }
  return elements;
}

bool is_channels_last(const at::Tensor& tensor) {
  const auto format = tensor.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

int64_t largest(const std::vector<int64_t>& values, int64_t least) {
  return values.empty() ? least : std::max(least, *std::max_element(values.begin(), values.end()));
}

/// What a convolution is called with beside its tensors.
struct Parameters {
  /// `stride`: its place among the arguments of the call. Forward and backward have the others in the same order behind it.
  Parameters(const KernelCall& call, size_t stride)
      : stride(call.inputs.at(stride).toIntVector()),
        padding(call.inputs.at(stride + 1).toIntVector()),
        dilation(call.inputs.at(stride + 2).toIntVector()),
        transposed(call.inputs.at(stride + 3).toBool()),
        groups(call.inputs.at(stride + 5).toInt()) {} // between them is the padding of the output

  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  bool transposed;
  int64_t groups;
};

Library library_of(const at::Tensor& input, const at::Tensor& weight, const Parameters& parameters) {
  if (at::isReducedFloatingType(input.scalar_type())) {
    return Library::kOneDnn;
  }
  if (input.scalar_type() != c10::kFloat) {
    return Library::kNative;
  }
  // One dimension is seen as two, the first of size 1. Of three, the last does not count.
  const bool flat = input.dim() == 3;
  const int64_t width = weight.size(-1);
  const int64_t height = flat ? 1 : weight.size(-2);
  const int64_t elements = input.size(0) * input.size(1) * (flat ? 1 : input.size(2)) * input.size(flat ? 2 : 3);
  if (parameters.groups == 1 && (width <= 3 || height <= 3) && input.size(0) <= 1 && elements <= 20480) {
    return Library::kNative;
  }
  const bool plain = largest(parameters.stride, 1) == 1 && largest(parameters.dilation, 1) == 1;
  return plain && input.size(0) < 16 && width == 1 && height == 1 ? Library::kEither : Library::kOneDnn;
}

std::optional<Shape> shape_of(
    const at::Tensor* in,
    const at::Tensor* weight,
    const at::Tensor* out,
    const Parameters& parameters) {
  const int64_t groups = parameters.groups;
  if (in == nullptr || weight == nullptr || out == nullptr || in->dim() < 3 || in->numel() == 0 || out->numel() == 0 ||
      weight->numel() == 0) {
    return std::nullopt;
  }
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  Shape shape;
  shape.in = nbytes(in);
  shape.weight = nbytes(weight);
  shape.out = nbytes(out);
  shape.strided = largest(parameters.stride, 1) > 1;
  int64_t kernel = 1;
  int64_t widest = 1;
  int64_t area = 1;
  int64_t narrowest = in->size(2);
  for (int64_t d = 2; d < weight->dim(); ++d) {
    kernel *= weight->size(d);
    widest = std::max(widest, weight->size(d));
    shape.positions *= out->size(d);
    narrowest = std::min(narrowest, in->size(d));
    area *= in->size(d);
  }
  shape.solid = in->dim() == 5;
  shape.whole_input = shape.positions == 1 && kernel == area && kernel > 1 && groups == 1;
  const int64_t channels = in->size(1) / groups; // of one group
  shape.depthwise = groups > 1 && channels == 1;
  const bool grouped = groups > 1 && !shape.depthwise;
  shape.halves = at::isReducedFloatingType(in->scalar_type());
  shape.samples = in->size(0) * groups;
  shape.channels_last = is_channels_last(*in) || is_channels_last(*weight);
  shape.few_channels = groups == 1 && channels <= 3 && kernel > 1;
  shape.columns = channels * kernel * shape.positions * kFloat;
  shape.strided_row = bordered(*out) * kFloat + 8 * KiB;
  shape.gathered = kernel == 1 && shape.strided ? round_up(in->size(1), kBlock) * shape.positions * kFloat + 64 : 0;
  if (grouped) {
    shape.in_blocked = shape.in;
    shape.out_blocked = shape.out;
    shape.weight_blocked = shape.weight_rows_blocked = shape.weight;
  } else {
    shape.in_blocked = blocked(*in);
    shape.out_blocked = blocked(*out);
    const int64_t rows = weight->size(0);
    const int64_t columns = weight->size(1);
    shape.weight_rows_blocked = shape.weight / rows * round_up(rows, kBlock);
    shape.weight_blocked =
        shape.depthwise ? shape.weight_rows_blocked : shape.weight_rows_blocked / columns * round_up(columns, kBlock);
  }
  if (shape.channels_last && groups > 1 && (shape.solid || !shape.depthwise || weight->size(0) != groups)) {
    // The channels of each group are padded.
    const int64_t rows = weight->size(0) / groups;
    shape.weight_blocked = shape.weight / (rows * channels) * round_up(rows, kBlock) * round_up(channels, kBlock);
  }
  const bool odd_groups = grouped && (channels % 8 != 0 || (weight->size(0) / groups) % 8 != 0);
  const bool dilated = largest(parameters.dilation, 1) > 1;
  const int64_t border = largest(parameters.padding, 0);
  shape.by_columns_out = odd_groups || (dilated && border >= 6);
  shape.by_columns_in = odd_groups || (dilated && border >= narrowest);
  shape.by_columns_weight = odd_groups || (dilated && 2 * border > narrowest) || (shape.depthwise && widest > 3) ||
      (groups > 1 && shape.positions <= 4) || (shape.few_channels && widest > 14) ||
      (groups == 1 && channels > 3 && channels % kBlock != 0 && (shape.solid || 2 * border > narrowest));
  return shape;
}

/// A convolution by torch's own kernels, see Note [Convolutions without oneDNN]. Bytes above its outputs.
struct Native {
  int64_t forward = 0;
  int64_t input_gradient = 0;
  int64_t weight_gradient = 0;
};

Native native_scratch(
    const at::Tensor& in,
    const at::Tensor& weight,
    const at::Tensor& out,
    const Parameters& parameters) {
  const int64_t groups = parameters.groups;
  int64_t kernel = 1;
  int64_t positions = 1;
  for (int64_t d = 2; d < weight.dim(); ++d) {
    kernel *= weight.size(d);
    positions *= out.size(d);
  }
  const int64_t of_a_sample = in.size(1) / groups * kernel * positions * static_cast<int64_t>(in.element_size());
  const bool solid = in.dim() == 5;
  const bool dilated = largest(parameters.dilation, 1) > 1;
  const bool pointwise = kernel == 1 && largest(parameters.stride, 1) == 1 && largest(parameters.padding, 0) == 0;
  const int64_t columns = dilated ? of_a_sample : of_a_sample * in.size(0);
  int64_t copies = 0;
  for (const auto* operand : {&in, &weight}) {
    copies += operand->is_contiguous() ? 0 : nbytes(operand);
  }
  Native scratch;
  scratch.forward = scratch.weight_gradient = pointwise && !dilated ? 0 : columns;
  scratch.input_gradient = solid || dilated ? columns : 0;
  if (groups > 1) {
    const int64_t of_a_group = (nbytes(&in) + nbytes(&out)) / groups;
    scratch.forward = std::max(nbytes(&out), scratch.forward + nbytes(&in) / groups);
    scratch.input_gradient = std::max(nbytes(&in) + nbytes(&weight), scratch.input_gradient + of_a_group);
    scratch.weight_gradient += of_a_group;
  }
  scratch.forward += copies;
  scratch.input_gradient += copies;
  scratch.weight_gradient += copies;
  return scratch;
}

/// The same of a transposed convolution: a bound.
int64_t native_transposed_scratch(const Shape& shape, const at::Tensor& out) {
  const auto wider = static_cast<int64_t>(out.element_size() / sizeof(float));
  return 2 * wider * shape.columns * out.size(0) + shape.weight;
}

/// Threads that share a weight's gradient each sum one of their own: with few weights for much work, all of them do.
int64_t sums_of_threads(const Shape& shape) {
  if (shape.halves) {
    return threads() * (2 * shape.weight_blocked + 64 * KiB + shape.gathered); // in float, and transposed rows
  }
  return (threads() - 1) * std::min(shape.weight_blocked, (shape.in_blocked + shape.out_blocked) / 8) +
      threads() * (11 * KiB + shape.gathered);
}

int64_t scratchpad_of_strided(const Shape& shape) {
  return shape.strided ? threads() * std::max(shape.strided_row, kFewest) + 33 * KiB : 13 * KiB;
}

// Each of the following is the most above the start of the call. `copies`: of operands in another layout.

int64_t forward_peak(const Shape& shape, int64_t copies) {
  if (shape.channels_last) {
    return copies + shape.out + 2 * shape.weight_blocked + threads() * shape.gathered + 13 * KiB;
  }
  const int64_t in = shape.few_channels ? 0 : shape.in_blocked;
  const int64_t weight = shape.few_channels ? shape.weight_rows_blocked : shape.weight_blocked;
  int64_t most =
      std::max(in + weight + shape.out_blocked + threads() * shape.gathered + KiB, shape.out_blocked + shape.out);
  if (shape.by_columns_out) {
    most = std::max(most, threads() * std::min(shape.columns, MiB) + 2 * shape.out);
  }
  if (shape.depthwise && shape.solid) {
    most = std::max(most, shape.in_blocked + shape.out_blocked + shape.out + 3 * KiB);
  }
  if (shape.whole_input) {
    most = std::max(most, shape.in + 2 * shape.out + 2 * shape.weight + 128 * KiB);
  }
  return copies + most;
}

int64_t input_gradient_peak(const Shape& shape, int64_t copies) {
  if (shape.channels_last) {
    return copies + shape.in + 2 * shape.weight_blocked + scratchpad_of_strided(shape);
  }
  const int64_t in = shape.few_channels && shape.strided ? shape.in : shape.in_blocked;
  int64_t most = std::max(
      shape.out_blocked + shape.weight_blocked + in + scratchpad_of_strided(shape),
      in + (shape.strided ? 2 : 1) * shape.in);
  if (shape.by_columns_in) {
    most = std::max(most, (shape.samples < threads() ? 1 : threads()) * shape.columns + KiB + 2 * shape.in);
  }
  return copies + most;
}

int64_t weight_gradient_peak(const Shape& shape, int64_t copies) {
  const int64_t weight = shape.few_channels ? shape.weight_rows_blocked : shape.weight_blocked;
  if (shape.channels_last) {
    // Depthwise kernels larger than 3x3 are widened to dense blocks of 16 x 16 channels.
    const int64_t widened = !shape.by_columns_weight ? 0 : shape.depthwise ? 256 * shape.weight : 4 * shape.weight;
    return copies + widened + 4 * weight + sums_of_threads(shape);
  }
  if (shape.by_columns_weight) {
    const int64_t workers = shape.positions / threads() < 256 ? threads() : 1;
    return copies + std::max(weight + workers * (4 * shape.weight + shape.columns) + 2 * KiB, 2 * weight);
  }
  const int64_t in = shape.few_channels ? 0 : shape.in_blocked;
  const int64_t others = weight + (shape.whole_input ? 2 : 1) * shape.weight;
  return copies + std::max(shape.out_blocked + in + weight + sums_of_threads(shape), others);
}

/// An operand that is laid out in neither the order of channels-last nor, if no other is, the usual one is copied first.
int64_t copy_of(const Shape& shape, const at::Tensor& operand) {
  const bool fits = shape.channels_last ? is_channels_last(operand) : operand.is_contiguous();
  return fits ? 0 : nbytes(&operand);
}

} // namespace

int64_t convolution_scratch(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  const auto* weight = defined(call.inputs, 1);
  const auto* output = defined(call.outputs, 0);
  const Parameters parameters(call, /*stride=*/3);
  const bool transposed = parameters.transposed;
  const auto shape = shape_of(transposed ? output : input, weight, transposed ? input : output, parameters);
  if (!shape) {
    return 0;
  }
  const auto library = library_of(*input, *weight, parameters);
  int64_t scratch = 0;
  if (library != Library::kOneDnn) {
    scratch = transposed ? native_transposed_scratch(*shape, *output)
                         : native_scratch(*input, *weight, *output, parameters).forward;
  }
  if (library == Library::kNative && !transposed) {
    return scratch;
  }
  const int64_t copies = copy_of(*shape, *input);
  const int64_t most = transposed ? input_gradient_peak(*shape, copies) : forward_peak(*shape, copies);
  return std::max(scratch, most - nbytes(output));
}

int64_t convolution_backward_scratch(const KernelCall& call) {
  const auto* gradient = defined(call.inputs, 0);
  const auto* input = defined(call.inputs, 1);
  const auto* weight = defined(call.inputs, 2);
  const Parameters parameters(call, /*stride=*/4);
  const bool transposed = parameters.transposed;
  const auto shape = shape_of(transposed ? gradient : input, weight, transposed ? input : gradient, parameters);
  if (!shape) {
    return 0;
  }
  const int64_t input_gradient = nbytes(defined(call.outputs, 0));
  const int64_t weight_gradient = nbytes(defined(call.outputs, 1));
  const int64_t bias_gradient = nbytes(defined(call.outputs, 2));
  const auto library = library_of(*input, *weight, parameters);
  int64_t scratch = 0;
  if (library != Library::kOneDnn && transposed) {
    scratch = native_transposed_scratch(*shape, *gradient);
  } else if (library != Library::kOneDnn) {
    const auto native = native_scratch(*input, *weight, *gradient, parameters);
    const int64_t of_input = input_gradient > 0 ? native.input_gradient : 0;
    const int64_t of_weight = weight_gradient > 0 ? native.weight_gradient : 0;
    scratch = parameters.groups > 1 && shape->solid ? of_input + of_weight : std::max(of_input, of_weight);
  }
  if (library == Library::kNative && !transposed) {
    return scratch;
  }
  const int64_t copies = copy_of(*shape, *gradient) + copy_of(*shape, *input);
  int64_t most = 0;
  if (input_gradient > 0) {
    most = transposed ? forward_peak(*shape, copies) : input_gradient_peak(*shape, copies);
  }
  if (weight_gradient > 0) {
    most = std::max(most, input_gradient + bias_gradient + weight_gradient_peak(*shape, copies));
  }
  return std::max(scratch, most - input_gradient - weight_gradient);
}

} // namespace recals
