#include "millrace/comm/communicator.h"

namespace millrace {

Fingerprint fingerprint_of(const at::Tensor& tensor) {
  Fingerprint fingerprint;
  if (!tensor.defined()) {
    fingerprint.dtype = Fingerprint::kNoTensor;
    return fingerprint;
  }
  fingerprint.dtype = static_cast<uint8_t>(tensor.scalar_type());
  fingerprint.num_dimensions = static_cast<uint8_t>(tensor.dim());
  const auto sizes = tensor.sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i < fingerprint.sizes.size()) {
      fingerprint.sizes[i] = sizes[i];
    } else {
      fingerprint.sizes.back() *= sizes[i];
    }
  }
  return fingerprint;
}

}  // namespace millrace
