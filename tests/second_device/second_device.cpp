// A second device in CPU memory, on PyTorch's PrivateUse1 key: tensors say that they are elsewhere, operators run on the
// CPU, and tensors of both devices in one operator raise, as on a GPU. Copies that a program asks for are counted.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <atomic>

using at::Tensor;
using at::IntArrayRef;

static constexpr auto kType = c10::DeviceType::PrivateUse1;
static const c10::Device kDevice(kType, 0);
static std::atomic<int64_t> copies{0};
// Operators that run on the CPU copy their arguments there and back; a program asks for none of these copies.
static thread_local int within_operator = 0;

struct WithinOperator {
  WithinOperator() { ++within_operator; }
  ~WithinOperator() { --within_operator; }
};

// ---- device, allocator, generators

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard);

struct Allocator final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::GetCPUAllocator()->raw_allocate(bytes) : nullptr;
    return {data, data, &free, kDevice};
  }
  static void free(void* data) {
    if (data) c10::GetCPUAllocator()->raw_deallocate(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
static Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::make_generator<at::CPUGeneratorImpl>(0);
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::CPUGeneratorImpl>(0);
  }
};

// ---- memory: what cannot be left to an operator of the CPU

static Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                   format);
}

static Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the CPU.
static Tensor cpu_alias(const Tensor& tensor) {
  if (!tensor.device().is_privateuseone()) return tensor;
  void* data = tensor.storage().nbytes() ? tensor.storage().data_ptr().get() : nullptr;
  Tensor alias = at::from_blob(data, tensor.sizes(), tensor.strides(), tensor.storage_offset(), [tensor](void*) {},
                               tensor.options().device(at::kCPU));
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

static Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  at::AutoDispatchBelowAutograd guard;
  if (!within_operator && from.device() != to.device()) ++copies;
  cpu_alias(to).copy_(cpu_alias(from));
  return to;
}

static Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_impl_cpu_(to.unsafeGetTensorImpl(), from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

static at::Scalar local_scalar(const Tensor& tensor) {
  if (!within_operator) ++copies;
  return at::native::_local_scalar_dense_cpu(cpu_alias(tensor));
}

static const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat>) {
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  auto storage = self.storage();
  size_t needed = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  if (storage.nbytes() < needed) {
    auto data = allocator.allocate(needed);
    if (storage.nbytes()) std::memcpy(data.get(), storage.data_ptr().get(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(needed);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

static Tensor& set_source(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return self;
}

static Tensor& set_whole_source(Tensor& self, at::Storage source) {
  int64_t size = source.nbytes() / self.dtype().itemsize();
  return set_source(self, source, 0, {size}, {1});
}

static Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
static Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
static Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}
static Tensor alias(const Tensor& self) { return at::native::alias(self); }
static Tensor view_as_real(const Tensor& self) { return at::native::view_as_real(self); }
static Tensor view_as_complex(const Tensor& self) { return at::native::view_as_complex(self); }
static Tensor view(const Tensor& self, IntArrayRef size) { return at::native::view(self, size); }

// ---- operators: on the CPU, after a look at the devices of all arguments

static Tensor to_second_device(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  Tensor result = at::empty_like(tensor, tensor.options().device(kDevice), at::MemoryFormat::Contiguous);
  copy_from(tensor, result, false);
  return result;
}

static void check_same_device(std::initializer_list<const Tensor*> tensors, const char* name) {
  bool here = false, there = false;
  for (auto* tensor : tensors)
    if (tensor->defined()) (tensor->device().is_privateuseone() ? there : here) = true;
  TORCH_CHECK(!(here && there), "Expected all tensors to be on the same device, got the CPU and the second device in ",
              name);
}

static Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride,
                          IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                          int64_t groups) {
  check_same_device({&x, &weight}, "convolution");
  at::AutoDispatchBelowAutograd guard;
  WithinOperator scope;
  std::optional<Tensor> cpu_bias;
  if (bias.has_value() && bias->defined()) cpu_bias = cpu_alias(*bias);
  return to_second_device(at::convolution(cpu_alias(x), cpu_alias(weight), cpu_bias, stride, padding, dilation,
                                          transposed, output_padding, groups));
}

static std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  check_same_device({&gradient, &x, &weight}, "convolution_backward");
  at::AutoDispatchBelowAutograd guard;
  WithinOperator scope;
  std::vector<int64_t> bias_size{weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)};
  auto result = at::convolution_backward(cpu_alias(gradient), cpu_alias(x), cpu_alias(weight), bias_size, stride,
                                         padding, dilation, transposed, output_padding, groups, mask);
  return {to_second_device(std::get<0>(result)), to_second_device(std::get<1>(result)),
          to_second_device(std::get<2>(result))};
}

// Its schema does not say that it writes the running statistics, which would hence be lost in the way over the CPU.
static std::tuple<Tensor, Tensor, Tensor> native_batch_norm(
    const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& mean, const std::optional<Tensor>& variance, bool training, double momentum,
    double eps) {
  at::AutoDispatchBelowAutograd guard;
  WithinOperator scope;
  auto alias = [](const std::optional<Tensor>& tensor) {
    return tensor.has_value() && tensor->defined() ? std::optional<Tensor>(cpu_alias(*tensor)) : std::nullopt;
  };
  auto result = at::native_batch_norm(cpu_alias(x), alias(weight), alias(bias), alias(mean), alias(variance), training,
                                      momentum, eps);
  return {to_second_device(std::get<0>(result)), to_second_device(std::get<1>(result)),
          to_second_device(std::get<2>(result))};
}

// The cell of a GRU, which torch has for other devices than the CPU: n' = n + z (h - n), n = tanh(i_n + r h_n).
static std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& h, const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  auto i = (input_bias.has_value() && input_bias->defined() ? input_gates + *input_bias : input_gates).chunk(3, 1);
  auto g = (hidden_bias.has_value() && hidden_bias->defined() ? hidden_gates + *hidden_bias : hidden_gates).chunk(3, 1);
  Tensor r = (i[0] + g[0]).sigmoid(), z = (i[1] + g[1]).sigmoid(), n = (i[2] + r * g[2]).tanh();
  return {n + z * (h - n), at::cat({r, z, n, h, g[2]}, 1)};
}

static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& gradient, const Tensor& workspace, bool has_bias) {
  auto parts = workspace.chunk(5, 1);
  const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &h = parts[3], &g = parts[4];
  Tensor by_n = gradient * (1 - z) * (1 - n * n), by_z = gradient * (h - n) * z * (1 - z), by_r = by_n * g * r * (1 - r);
  Tensor by_input = at::cat({by_r, by_z, by_n}, 1), by_hidden = at::cat({by_r, by_z, by_n * r}, 1);
  Tensor none;
  return {by_input, by_hidden, gradient * z, has_bias ? by_input.sum(0) : none, has_bias ? by_hidden.sum(0) : none};
}

static void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const size_t n = op.schema().arguments().size();
  bool there = false;
  std::optional<Tensor> here;
  auto look = [&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.device().is_privateuseone()) there = true;
    else if (tensor.dim() > 0) here = tensor;  // a scalar of the CPU may meet tensors of any device
  };
  for (size_t i = 0; i < n; ++i) {
    const auto& value = torch::jit::peek(*stack, i, n);
    if (value.isTensor()) look(value.toTensor());
    else if (value.isList())
      for (const auto& element : value.toListRef())
        if (element.isTensor()) look(element.toTensor());
  }
  // indices may be on the CPU, as on a GPU
  bool is_indexing = name.find("index") != std::string::npos;
  TORCH_CHECK(!(there && here.has_value()) || is_indexing,
              "Expected all tensors to be on the same device, got the CPU (", here.has_value() ? here->sizes() : IntArrayRef(),
              ") and the second device in ", name);
  WithinOperator scope;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_source);
  m.impl("set_.source_Storage", &set_whole_source);
  m.impl("alias", &alias);
  m.impl("as_strided", &as_strided);
  m.impl("native_batch_norm", &native_batch_norm);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  m.impl("view", &view);
  m.impl("view_as_complex", &view_as_complex);
  m.impl("view_as_real", &view_as_real);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

// Copies read conjugate and negative tensors as they are; else each copy would need a copy first.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("register_hooks", [] {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
  });
  m.def("copies", [] { return copies.load(); }, "Copies between the devices so far, single numbers included.");
}
