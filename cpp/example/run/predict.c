/* Calls a serialized function of one float32 array, with ones. */
#include <inttypes.h>
#include <jaxexp/run.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(jaxexp_error* error) {
  fprintf(stderr, "%s\n", jaxexp_error_message(error));
  jaxexp_error_free(error);
  return 1;
}

int main(int count, char** arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: predict PLUGIN ARTIFACT [SIZE...]\n");
    return 2;
  }
  int64_t shape[8];
  size_t rank = 0, size = 1;
  for (; rank < 8 && (int)rank + 3 < count; ++rank) {
    shape[rank] = strtoll(arguments[rank + 3], NULL, 10);
    size *= (size_t)shape[rank];
  }
  float* ones = malloc((size + 1) * sizeof(float));
  if (!ones) return 1;
  for (size_t i = 0; i < size; ++i) ones[i] = 1;

  int status = 0;
  jaxexp_error* error = NULL;
  jaxexp_runtime* runtime = jaxexp_runtime_new(arguments[1], NULL, 0, &error);
  jaxexp_function* predict = runtime ? jaxexp_load(runtime, arguments[2], NULL, 0, &error) : NULL;
  jaxexp_array* x = predict ? jaxexp_array_view("float32", shape, rank, ones, &error) : NULL;
  jaxexp_array** results = predict ? calloc(jaxexp_result_count(predict) + 1, sizeof *results) : NULL;
  const jaxexp_array* inputs[] = {x};
  if (!x || !results || jaxexp_call(predict, inputs, 1, results, &error) != 0) {
    status = error ? fail(error) : 1;
  } else {
    for (size_t i = 0; i < jaxexp_result_count(predict); ++i) {
      const size_t bytes = jaxexp_array_size_bytes(results[i]);
      float* numbers = malloc(bytes + 1);
      if (!numbers || jaxexp_array_read(results[i], numbers, bytes, &error) != 0) {
        status = error ? fail(error) : 1;
      } else {
        printf("%s:", jaxexp_result(predict, i));
        for (size_t k = 0; k < bytes / sizeof(float); ++k) printf(" %g", numbers[k]);
        printf("\n");
      }
      free(numbers);
      jaxexp_array_free(results[i]);
    }
  }
  free(results);
  jaxexp_array_free(x);
  jaxexp_function_free(predict);
  jaxexp_runtime_free(runtime);
  free(ones);
  return status;
}
