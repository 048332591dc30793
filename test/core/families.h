#pragma once

/// Training steps that look like those of real models, for the planner's tests and for its timing.

#include "step_builder.h"

namespace recals::plan::test {

/// Rough costs: 1 TFLOP/s and 100 GB/s, so that a matmul of width 512 costs about 25 times a pointwise op.
inline double matmul_seconds(double rows, double in, double out) {
  return 2 * rows * in * out / 1e12;
}
inline double pointwise_seconds(double bytes) {
  return bytes / 100e9;
}

struct TransformerSize {
  int layers = 6;
  int64_t tokens = 2048; ///< batch * length
  int64_t width = 512;
  int64_t vocabulary = 8192;
  bool dropout = true;
  int device_change = -1; ///< the layer that begins the second device
};

inline StepGraph transformer(const TransformerSize& size) {
  StepBuilder b(
      size.device_change >= 0 ? std::vector<std::string>{"cuda:0", "cuda:1"} : std::vector<std::string>{"cpu"});
  const int64_t row = size.tokens * size.width * 4;
  const double rows = static_cast<double>(size.tokens);
  const double width = static_cast<double>(size.width);
  int device = 0;
  std::string module;
  const auto pointwise = [&](const std::string& op, std::vector<int> reads, std::vector<int64_t> writes) {
    int64_t bytes = 0;
    for (const int s : reads) {
      bytes += b.graph.storages[s].bytes;
    }
    for (const int64_t write : writes) {
      bytes += write;
    }
    const int n = b.node(
        "aten::" + op, std::move(reads), std::move(writes), pointwise_seconds(static_cast<double>(bytes)), device);
    b.graph.nodes[n].module = module;
    return n;
  };
  const auto linear = [&](int in, int64_t in_width, int64_t out_width) {
    const int n = b.node(
        "aten::linear",
        {in},
        {size.tokens * out_width * 4},
        matmul_seconds(rows, static_cast<double>(in_width), static_cast<double>(out_width)),
        device);
    b.graph.nodes[n].module = module;
    b.save(n, in);
    return b.out(n);
  };
  const auto layer_norm = [&](int x) {
    const int n = pointwise("native_layer_norm", {x}, {row, size.tokens * 8});
    b.graph.storages[b.out(n, 1)].internal = true;
    b.save(n, x);
    b.save(n, b.out(n, 1));
    return b.out(n);
  };
  const auto dropout = [&](int x) {
    if (!size.dropout) {
      return x;
    }
    const int n = pointwise("native_dropout", {x}, {row, row / 4});
    b.graph.storages[b.out(n, 1)].internal = true;
    b.graph.nodes[n].rng_bytes = 64;
    b.save(n, b.out(n, 1));
    return b.out(n);
  };
  int x = b.out(pointwise("embedding", {}, {row}));
  for (int layer = 0; layer < size.layers; ++layer) {
    if (layer == size.device_change) {
      device = 1;
      x = b.out(pointwise("to", {x}, {row}));
    }
    module = "layers." + std::to_string(layer);
    const int qkv = linear(layer_norm(x), size.width, 3 * size.width);
    const int attention = b.node(
        "aten::_scaled_dot_product_flash_attention",
        {qkv},
        {row, size.tokens * 32},
        4 * rows * 512 * width / 1e12,
        device);
    b.graph.nodes[attention].module = module;
    b.save(attention, qkv);
    b.save(attention, b.out(attention, 0));
    b.save(attention, b.out(attention, 1));
    const int projected = linear(b.out(attention), size.width, size.width);
    x = b.out(pointwise("add", {x, dropout(projected)}, {row}));
    const int hidden = linear(layer_norm(x), size.width, 4 * size.width);
    const int gelu = pointwise("gelu", {hidden}, {4 * row});
    b.save(gelu, hidden);
    const int out = linear(b.out(gelu), 4 * size.width, size.width);
    x = b.out(pointwise("add", {x, dropout(out)}, {row}));
  }
  module = "head";
  const int logits = linear(layer_norm(x), size.width, size.vocabulary);
  const int soft = pointwise("log_softmax", {logits}, {size.tokens * size.vocabulary * 4});
  b.save(soft, b.out(soft));
  const int loss = pointwise("nll_loss", {b.out(soft)}, {4});
  b.save(loss, b.out(soft));
  b.graph.storages[b.out(loss)].output = true;
  b.reverse();
  return std::move(b.graph);
}

/// A residual network of convolutions, batch norms and ReLUs, whose activations halve at every stage.
inline StepGraph residual_network(int stages, int blocks, int64_t bytes) {
  StepBuilder b;
  const auto conv = [&](int in, int64_t out_bytes) {
    const int n = b.node(
        "aten::convolution",
        in < 0 ? std::vector<int>{} : std::vector<int>{in},
        {out_bytes},
        static_cast<double>(bytes) * 600e-12);
    if (in >= 0) {
      b.save(n, in);
    }
    return b.out(n);
  };
  const auto batch_norm = [&](int in) {
    const int64_t size = b.graph.storages[in].bytes;
    const int n =
        b.node("aten::native_batch_norm", {in}, {size, 512}, pointwise_seconds(3.0 * static_cast<double>(size)));
    b.save(n, in);
    b.save(n, b.out(n, 1));
    return b.out(n);
  };
  const auto relu = [&](int in) {
    const int64_t size = b.graph.storages[in].bytes;
    const int n = b.node("aten::relu", {in}, {size}, pointwise_seconds(2.0 * static_cast<double>(size)));
    b.save(n, b.out(n));
    return b.out(n);
  };
  int x = relu(batch_norm(conv(-1, bytes)));
  for (int stage = 0; stage < stages; ++stage) {
    for (int block = 0; block < blocks; ++block) {
      const int y = batch_norm(conv(relu(batch_norm(conv(x, bytes))), bytes));
      const int shortcut = stage > 0 && block == 0 ? batch_norm(conv(x, bytes)) : x;
      const int sum = b.node("aten::add", {y, shortcut}, {bytes}, pointwise_seconds(3.0 * static_cast<double>(bytes)));
      x = relu(b.out(sum));
    }
    bytes /= 2;
  }
  const int loss = b.node("aten::mean", {x}, {4}, 1e-6);
  b.graph.storages[b.out(loss)].output = true;
  b.reverse();
  return std::move(b.graph);
}

/// A U-Net: every level of the way down is read once more on the way up.
inline StepGraph u_shaped(int levels, int64_t bytes) {
  StepBuilder b;
  const auto conv_relu = [&](int in, int64_t out_bytes) {
    const int conv = b.node(
        "aten::convolution",
        in < 0 ? std::vector<int>{} : std::vector<int>{in},
        {out_bytes},
        static_cast<double>(out_bytes) * 500e-12);
    if (in >= 0) {
      b.save(conv, in);
    }
    const int relu =
        b.node("aten::relu", {b.out(conv)}, {out_bytes}, pointwise_seconds(2.0 * static_cast<double>(out_bytes)));
    b.save(relu, b.out(relu));
    return b.out(relu);
  };
  std::vector<int> skips;
  int x = -1;
  for (int level = 0; level < levels; ++level) {
    x = conv_relu(conv_relu(x, bytes), bytes);
    skips.push_back(x);
    const int pool =
        b.node("aten::max_pool2d", {x}, {bytes / 4, bytes / 2}, pointwise_seconds(static_cast<double>(bytes)));
    b.save(pool, x);
    b.save(pool, b.out(pool, 1));
    x = b.out(pool);
    bytes /= 2;
  }
  x = conv_relu(conv_relu(x, bytes), bytes);
  for (int level = levels - 1; level >= 0; --level) {
    bytes *= 2;
    const int up = b.node("aten::upsample", {x}, {bytes}, pointwise_seconds(2.0 * static_cast<double>(bytes)));
    const int cat = b.node(
        "aten::cat", {b.out(up), skips[level]}, {2 * bytes}, pointwise_seconds(4.0 * static_cast<double>(bytes)));
    x = conv_relu(conv_relu(b.out(cat), bytes), bytes);
  }
  const int loss = b.node("aten::mse_loss", {x}, {4}, 1e-6);
  b.save(loss, x);
  b.graph.storages[b.out(loss)].output = true;
  b.reverse();
  return std::move(b.graph);
}

/// Linear, ReLU, Dropout. The mask can be packed into bits, the ReLU's result, of which only the sign is read, too; the
/// dropout can be run again from its mask.
inline StepGraph mlp(int layers, int64_t bytes) {
  StepBuilder b;
  int x = b.out(b.node("input", {}, {bytes}, 1e-3));
  for (int layer = 0; layer < layers; ++layer) {
    const int linear = b.node("aten::linear", {x}, {bytes}, 10);
    b.save(linear, x);
    const int relu = b.node("aten::relu", {b.out(linear)}, {bytes}, 0.5);
    b.save(relu, b.out(relu));
    b.graph.storages[b.out(relu)].packs = {{"sign", bytes / 32, false, 0.25, 0.125, bytes / 32, bytes}};
    const int dropout = b.node("aten::dropout", {b.out(relu)}, {bytes, bytes}, 3);
    b.save(dropout, b.out(dropout, 1));
    b.graph.storages[b.out(dropout, 1)].internal = true;
    b.graph.storages[b.out(dropout, 1)].packs = {{"bits", bytes / 32, true, 0.25, 0.125, bytes / 32, bytes}};
    b.graph.nodes[dropout].rng_bytes = 64;
    b.graph.nodes[dropout].recipe = {{b.out(dropout, 1)}, 0.625, {bytes}};
    x = b.out(dropout);
  }
  const int loss = b.node("aten::mse_loss", {x}, {4}, 0.5);
  b.save(loss, x);
  b.graph.storages[b.out(loss)].output = true;
  b.reverse();
  return std::move(b.graph);
}

/// Some storages of the graph get a form.
inline StepGraph with_packs(StepGraph graph, uint64_t seed) {
  Random random(seed * 17 + 3);
  for (Storage& storage : graph.storages) {
    if (chance(random, 30)) {
      const double seconds = graph.nodes[storage.producer].seconds * static_cast<double>(draw(random, 1, 16)) / 8;
      const int64_t bytes = storage.bytes / draw(random, 4, 16);
      storage.packs.push_back({"form", bytes, chance(random, 70), seconds, seconds, bytes, storage.bytes});
    }
  }
  return graph;
}

/// Uneven chains with residual reads, slotless links, shared slots, several writes; small enough for anything.
/// `dense`: how often, in percent, a node reads one more storage from far back.
inline StepGraph random_network(uint64_t seed, int nodes, int dense, double gradient_scale, bool two_devices) {
  Random random(seed);
  StepBuilder b(two_devices ? std::vector<std::string>{"cuda:0", "cuda:1"} : std::vector<std::string>{"cpu"});
  for (int n = 0; n < nodes; ++n) {
    const int storages = static_cast<int>(b.graph.storages.size());
    std::vector<int> reads;
    if (storages > 0) {
      reads.push_back(b.out(n - 1));
      if (chance(random, dense)) {
        const int far = static_cast<int>(draw(random, 0, storages - 1));
        if (far != reads[0]) {
          reads.push_back(far);
        }
      }
    }
    const int device = two_devices && 2 * n >= nodes ? 1 : 0;
    const bool heavy = chance(random, 40);
    std::vector<int64_t> writes{draw(random, 1, 64)};
    if (chance(random, 15)) {
      writes.push_back(draw(random, 1, 16));
    }
    const double seconds = static_cast<double>(heavy ? draw(random, 40, 400) : draw(random, 1, 10)) / 8;
    b.node("op", reads, writes, seconds, device);
    Node& node = b.graph.nodes.back();
    if (chance(random, 20)) {
      node.transient[device] += draw(random, 0, 32);
    }
    if (chance(random, 10)) {
      node.rng_bytes = 1;
      node.rng_device = device;
    }
    for (const int s : reads) {
      if (chance(random, 60)) {
        b.save(n, s);
      }
    }
    if (chance(random, 35)) {
      b.save(n, b.out(n));
    }
    if (writes.size() > 1) {
      b.save(n, b.out(n, 1));
    }
    for (const int s : node.writes) {
      b.graph.storages[s].recomputable = !chance(random, 4);
    }
  }
  b.graph.storages.back().output = true;
  b.reverse(gradient_scale);
  return std::move(b.graph);
}

/// One of the above.
inline StepGraph some_network(uint64_t seed) {
  Random random(seed * 31 + 7);
  switch (seed % 6) {
    case 0: // a chain
      return random_network(seed, static_cast<int>(draw(random, 2, 40)), 0, 1, false);
    case 1: // residual
      return random_network(seed, static_cast<int>(draw(random, 4, 40)), 25, 1, false);
    case 2: // dense
      return random_network(seed, static_cast<int>(draw(random, 4, 30)), 90, 1, false);
    case 3: // gradients that are larger than the activations
      return random_network(seed, static_cast<int>(draw(random, 4, 40)), 20, 3, false);
    case 4:
      return random_network(seed, static_cast<int>(draw(random, 4, 40)), 20, 1, true);
    default:
      return u_shaped(static_cast<int>(draw(random, 1, 3)), 1 << draw(random, 6, 12));
  }
}

} // namespace recals::plan::test
