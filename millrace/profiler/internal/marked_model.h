// A model whose layers and loss do what another's do, under marks that a kernel recorder sees
// (kernel_recorder.h). Where the thread is not recorded, the marks do nothing.
#pragma once

#include "millrace/model/model.h"

namespace millrace::internal {

// `model` must outlive it.
Model marked_model(const Model& model);

}  // namespace millrace::internal
