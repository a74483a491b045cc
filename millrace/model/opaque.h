// Opaque layers: any libtorch module, or any function of tensors, as a layer. Autograd supplies the
// backward, so nothing but a forward has to be written.
//
// Only who makes opaque layers includes this header: it brings part of libtorch's C++ front end
// with it, which takes long to compile.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <functional>
#include <string>
#include <utility>

#include "millrace/model/layer.h"

namespace millrace {

// A module whose forward takes one to four tensors [B, ...] and returns one tensor [B, ...]. Its
// parameters become the layer's and start at the values that they have in the module; call
// torch::manual_seed before making it for equal runs.
//
// Every microbatch in flight has a copy of the module of its own, whose parameters are views of the
// weight version that its forward reads. Autograd ties a backward to its forward's weights, so
// policies whose backward reads others are refused (Layer::needs_forward_weights). Both halves of
// the backward happen in the input half.
//
// Throws Error(kInvalidArgument), naming the layer and saying what to do, for a module that cannot
// be copied, that keeps buffers, or (once shapes are known) that does not return one tensor with
// the samples of its input. Random draws of the module come from libtorch's global generator and
// depend on the layout: use the native dropout.
LayerPtr opaque_module(std::string name, torch::nn::AnyModule module);

// The same for a module, a module holder, or anything else that AnyModule takes:
// opaque("gru", MyBlock(64)).
template <typename Module>
LayerPtr opaque(std::string name, Module module) {
  return opaque_module(std::move(name), torch::nn::AnyModule(std::move(module)));
}

// A function of tensors without parameters. Must be safe to call from several threads at once.
LayerPtr opaque_function(std::string name, std::function<at::Tensor(at::TensorList)> function);

}  // namespace millrace
