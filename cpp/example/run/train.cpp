// Trains a model with a serialized step: (weights, x, y) -> (weights, loss). The weights stay on the device.
#include <jaxexp/runtime.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <vector>

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: train PLUGIN ARTIFACT STEPS\n";
    return 2;
  }
  try {
    const jaxexp::Runtime runtime(arguments[1]);
    const jaxexp::Function step = runtime.load(arguments[2]);

    // y = 2 * x0 - x1, which the weights have to find.
    const jaxexp::Array x({4, 2}, std::vector<float>{0, 0, 0, 1, 1, 0, 1, 1});
    const jaxexp::Array y({4}, std::vector<float>{0, -1, 2, 1});
    const jaxexp::Array x_there = runtime.put(x), y_there = runtime.put(y);
    jaxexp::Array weights({2}, std::vector<float>{0, 0});
    jaxexp::Array loss(0.0f);
    for (int i = 0; i < std::atoi(arguments[3]); ++i) {
      const std::vector<jaxexp::Array> results = step(weights, x_there, y_there);
      weights = results[0];
      loss = results[1];
    }
    const std::vector<float> found = weights.to<float>();
    std::cout << "weights " << found[0] << ' ' << found[1] << ", loss " << loss.to<float>()[0] << '\n';
  } catch (const std::exception& error) {
    std::cerr << arguments[2] << ": " << error.what() << '\n';
    return 1;
  }
}
