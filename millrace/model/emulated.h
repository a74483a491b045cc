// Emulated models: layers that stand for those of a profile. Their shapes follow the profile's
// bytes, many times smaller; the time they take is the emulated device's business
// (runtime/emulated_device.h), not theirs.
//
// They compute little but honestly: forward, both gradients and updates are those of a real
// function of input and parameters in which every sample and every parameter counts, so that losses
// are defined and `verify` has something to prove.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/core/profile.h"
#include "millrace/model/model.h"

namespace millrace {

// `outputs` values of a sample from inputs of any shape, by P parameters (0: none). With x_i the
// sum of each input's value at i mod its number of values, y_i = x_i * (1 + a_i); a_i sums the
// parameters at i, i + outputs, ... over the square root of their number, or, when there are fewer
// parameters than outputs, is the one at i mod P.
LayerPtr emulated(std::string name, int64_t outputs, int64_t parameters);

// How many times smaller a profile's tensors are made when nobody says: so many times that the
// parameters and one microbatch's activations of all layers take 1 MiB, and at least 1. Many ranks
// then fit into any memory, and their arithmetic takes a small part of the time they wait.
double default_shrink(const Profile& profile);

// The model of a profile for inputs of `input` (float32 or float64) and targets of `num_classes`
// classes. Every layer puts out its profile's bytes a sample / `shrink` as float32 counts them, at
// least one value; the last one a value a class. A layer with parameters has at least one. Layers
// take their inputs along the profile's edges, those without any the model's input. Throws
// kInvalidArgument when a layer other than the last has no edge that leaves it.
Model emulated_model(const Profile& profile, double shrink, const TensorSpec& input,
                     int64_t num_classes);

}  // namespace millrace
