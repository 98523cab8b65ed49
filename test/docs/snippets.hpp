/// What the lines in docs/ refer to without declaring it.
#pragma once

#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/loss_scaler.hpp"
#include "troupe/runtime/optimizer.hpp"
#include "troupe/runtime/runtime.hpp"

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

float warm_up(std::uint64_t step);
void layer_forward(troupe::UnitId unit, std::span<const float> weights);
void layer_backward(troupe::UnitId unit,
                    std::span<const float> weights,
                    std::span<float> gradient,
                    bool accumulate);

void forward_and_backward(troupe::Runtime& runtime, int batch);
void train_step(troupe::Runtime& runtime, int batch);
int next_batch();

struct Context {
  troupe::World& world;
  troupe::Runtime& runtime;
  troupe::Model& model;
  troupe::Options& options;
  troupe::AdamW& optimizer;
  troupe::UnitId block;
  std::vector<int>& batch;
  std::string& data_position;
};
