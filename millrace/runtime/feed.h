// Feed: which samples each microbatch part of a segment uses. One global order, cut the same way
// for any layout.
//
// A step's samples are split into as many parts as it has microbatches (larger first): microbatch m
// of a feed of p parts is part m mod p of step m / p. Immutable; shared by all ranks of a process.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/data/dataset.h"
#include "millrace/data/order.h"

namespace millrace {

class Feed {
 public:
  // Steps `first_step`.. of an epoch, step 0 of the feed being `first_step`. `order` are the
  // epoch's sample indices.
  Feed(const Dataset& dataset, std::vector<int64_t> order, int64_t batch, int64_t first_step,
       int64_t parts, at::ScalarType dtype);

  int64_t num_steps() const;
  int64_t step_samples(int64_t step) const;  // over all parts: what the update divides by

  // Samples of one part; 0 when the step has fewer samples than parts. `microbatch` counts through
  // all steps.
  int64_t part_samples(int64_t microbatch) const;
  // What the dataset throws, with the sample's index where one sample alone is at fault.
  Batch part(int64_t microbatch) const;
  // Place of the part's first sample in the minibatch of its step: what keys random draws.
  int64_t first_place(int64_t microbatch) const;

 private:
  struct Part {
    int64_t begin;  // position in order_
    int64_t size;
  };
  Part find(int64_t microbatch) const;
  void blame_sample(const Part& part) const;

  const Dataset* dataset_;
  std::vector<int64_t> order_;
  int64_t batch_;
  int64_t first_step_;
  int64_t parts_;
  at::ScalarType dtype_;
};

}  // namespace millrace
