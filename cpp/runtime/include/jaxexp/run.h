/* Serialized functions of jax.export and jaxexp, run on any PJRT plugin: the interface for C, and for languages that
 * bind C. Everything that jaxexp/runtime.h says holds here too.
 *
 * What returns a pointer returns NULL on failure, what returns an int returns 0 on success. Then, unless `error` is
 * NULL, *error is an error that the caller frees. On success *error is left as it was. Handles are freed with the
 * function of their kind, which also takes NULL; one may be freed while others that were made from it are in use. Texts
 * live as long as the handle that they were asked from. Messages and texts from an artifact are for people: one line,
 * with what is not printable as "\x1b". A handle may be used by several threads. */
#ifndef JAXEXP_RUN_H_
#define JAXEXP_RUN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#if defined(JAXEXP_RUN_BUILDING)
#define JAXEXP_RUN_API __declspec(dllexport)
#elif defined(JAXEXP_RUN_SHARED)
#define JAXEXP_RUN_API __declspec(dllimport)
#else
#define JAXEXP_RUN_API
#endif
#else
#define JAXEXP_RUN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct jaxexp_runtime jaxexp_runtime;
typedef struct jaxexp_function jaxexp_function;
typedef struct jaxexp_array jaxexp_array;
typedef struct jaxexp_error jaxexp_error;

typedef enum {
  JAXEXP_ARGUMENT = 1,    /* what the caller gave does not fit */
  JAXEXP_UNSUPPORTED = 2, /* what the artifact asks for is not there */
  JAXEXP_PLUGIN = 3,      /* the plugin failed */
  JAXEXP_DAMAGED = 4,     /* the file is no artifact, or a damaged one, or its weights are not there */
  JAXEXP_SYSTEM = 5       /* a file cannot be read, or memory is used up */
} jaxexp_reason;

/* Grows with every release that changes this interface in a way that programs notice. */
#define JAXEXP_RUN_VERSION 1
JAXEXP_RUN_API int jaxexp_run_version(void);

JAXEXP_RUN_API jaxexp_reason jaxexp_error_reason(const jaxexp_error* error);
JAXEXP_RUN_API const char* jaxexp_error_message(const jaxexp_error* error);
JAXEXP_RUN_API void jaxexp_error_free(jaxexp_error* error);

/* What a plugin is told when it starts: names and values as texts. "true", "false" and whole numbers become such. */
typedef struct {
  const char* name;
  const char* value;
} jaxexp_option;

JAXEXP_RUN_API jaxexp_runtime* jaxexp_runtime_new(const char* plugin, const jaxexp_option* options, size_t option_count,
                                                  jaxexp_error** error);
JAXEXP_RUN_API void jaxexp_runtime_free(jaxexp_runtime* runtime);
JAXEXP_RUN_API const char* jaxexp_runtime_platform(const jaxexp_runtime* runtime);
JAXEXP_RUN_API size_t jaxexp_runtime_device_count(const jaxexp_runtime* runtime);
/* Of a device by its number below the count; NULL, or -1, for one that is too large. */
JAXEXP_RUN_API const char* jaxexp_device_kind(const jaxexp_runtime* runtime, size_t device);
JAXEXP_RUN_API const char* jaxexp_device_description(const jaxexp_runtime* runtime, size_t device);
JAXEXP_RUN_API int jaxexp_device_id(const jaxexp_runtime* runtime, size_t device);
/* Bytes of its memory that are in use, or that there are; -1 where the plugin does not say. */
JAXEXP_RUN_API int64_t jaxexp_device_memory_used(const jaxexp_runtime* runtime, size_t device);
JAXEXP_RUN_API int64_t jaxexp_device_memory_limit(const jaxexp_runtime* runtime, size_t device);
/* Calls `log` with one line about each function that is compiled, and why, about code from a file, and about weights.
 * Any thread may call it, while others that need the same function wait: it must not use that function. It replaces
 * the one before; NULL: nobody hears them. */
JAXEXP_RUN_API int jaxexp_set_log(const jaxexp_runtime* runtime, void (*log)(void* user, const char* line), void* user,
                                  jaxexp_error** error);

/* Names the LAPACK of this process: a shared library, as a path or as a name that the system finds. */
JAXEXP_RUN_API int jaxexp_use_lapack(const char* library, jaxexp_error** error);
/* What runs a custom call: an XLA_FFI_Handler of xla/ffi/api/c_api.h, built for the plugin's version of XLA's FFI. */
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;
typedef struct XLA_FFI_Error* (*jaxexp_ffi_handler)(struct XLA_FFI_CallFrame* frame);
/* Gives the plugin a handler, for functions that are compiled from now on. The plugin keeps it. */
JAXEXP_RUN_API int jaxexp_register_ffi(const jaxexp_runtime* runtime, const char* target, jaxexp_ffi_handler handler,
                                       jaxexp_error** error);

/* `devices` are numbers below the device count; without any, the function gets the first ones. */
JAXEXP_RUN_API jaxexp_function* jaxexp_load(const jaxexp_runtime* runtime, const char* file, const size_t* devices,
                                            size_t device_count, jaxexp_error** error);
/* What jaxexp_load_with() takes beside the file. `size` is sizeof(jaxexp_load_options): later releases add fields. */
typedef struct {
  size_t size;
  const size_t* devices;
  size_t device_count;
  const char* executables; /* a file of jaxexp_save_executable(), which is trusted like a program; or NULL */
  const char* weights;     /* a file of tensors instead of what the artifact names, or an index of several; or NULL */
  int stable;              /* not 0: files of weights, and archives, are read into memory, and not mapped */
  const char* member;      /* the function of this name, where the file is an archive; or NULL */
  const jaxexp_option* compile_options; /* XLA's options for this function; values are read as those of plugins are */
  size_t compile_option_count;
  const char* const* sizes; /* sets of sizes of all dimension variables beside those that the artifact was saved with:
                             * each a text, as in "batch=8,seq=128". jaxexp_compile() compiles for all of them */
  size_t size_count;
  int pad; /* not 0: calls with other sizes run the code of the next larger set, with zeros behind arguments, where
            * the artifact declares that these dimensions may be padded */
  int only_sizes;               /* not 0: calls that need code for other sets fail */
  const char* compile_cache;    /* a folder in which processes share compiled code, which is trusted like a program; or
                                 * NULL */
  uint64_t compile_cache_bytes; /* how many bytes the folder may have; 0: 4 GiB */
  int no_warm_up; /* not 0: jaxexp_compile() does not also call the function once, with zeros and its weights */
} jaxexp_load_options;
/* `options` may be NULL, here and below. */
JAXEXP_RUN_API jaxexp_function* jaxexp_load_with(const jaxexp_runtime* runtime, const char* file,
                                                 const jaxexp_load_options* options, jaxexp_error** error);
/* The same from memory of the caller's, an artifact or an archive. It stays where and what it is until the function,
 * and all that was made from it, are freed. */
JAXEXP_RUN_API jaxexp_function* jaxexp_load_bytes(const jaxexp_runtime* runtime, const void* bytes, size_t size,
                                                  const jaxexp_load_options* options, jaxexp_error** error);
/* Adds the compiled code to a file, or makes the file. */
JAXEXP_RUN_API int jaxexp_save_executable(const jaxexp_function* function, const char* file, jaxexp_error** error);
/* Why the function was compiled in spite of a file of executables; empty where it was not, or is not yet. With symbolic
 * dimensions, it is about the sizes that were used last. The text stays until the function is freed. */
JAXEXP_RUN_API const char* jaxexp_why_compiled(const jaxexp_function* function);
JAXEXP_RUN_API void jaxexp_function_free(jaxexp_function* function);
JAXEXP_RUN_API const char* jaxexp_function_name(const jaxexp_function* function);
JAXEXP_RUN_API size_t jaxexp_argument_count(const jaxexp_function* function);
JAXEXP_RUN_API size_t jaxexp_result_count(const jaxexp_function* function);
/* As in "args[0]['w']: float32[b,4]". NULL for an index that is too large. Weights are no arguments. */
JAXEXP_RUN_API const char* jaxexp_argument(const jaxexp_function* function, size_t index);
JAXEXP_RUN_API const char* jaxexp_result(const jaxexp_function* function, size_t index);
/* The path only, with the names that the artifact's author wrote: for programs, not for terminals. */
JAXEXP_RUN_API const char* jaxexp_argument_path(const jaxexp_function* function, size_t index);
JAXEXP_RUN_API const char* jaxexp_result_path(const jaxexp_function* function, size_t index);
/* Fails where the function has symbolic dimensions, and no sizes are listed: it is compiled when it is first called
 * with their sizes. */
JAXEXP_RUN_API int jaxexp_compile(const jaxexp_function* function, jaxexp_error** error);
/* Compiles for the sizes of all dimension variables, as in {"batch"} and {8}. */
JAXEXP_RUN_API int jaxexp_compile_sizes(const jaxexp_function* function, const char* const* variables,
                                        const int64_t* sizes, size_t count, jaxexp_error** error);
/* Without an error, NULL says that the artifact has no VJP. */
JAXEXP_RUN_API jaxexp_function* jaxexp_vjp(const jaxexp_function* function, jaxexp_error** error);

/* The same function with the weights of another file of tensors, or index of several ones. */
JAXEXP_RUN_API jaxexp_function* jaxexp_with_weights(const jaxexp_function* function, const char* file,
                                                    jaxexp_error** error);
/* The same function, which takes its weights as arguments. */
JAXEXP_RUN_API jaxexp_function* jaxexp_unbound(const jaxexp_function* function, jaxexp_error** error);
/* The weights that the function gets by itself: their names, as the artifact's author wrote them. NULL for an index
 * that is too large. */
JAXEXP_RUN_API size_t jaxexp_weight_count(const jaxexp_function* function);
JAXEXP_RUN_API const char* jaxexp_weight_name(const jaxexp_function* function, size_t index);
/* One of them on the devices: what calls use, and no copy. No call donates it. */
JAXEXP_RUN_API jaxexp_array* jaxexp_weight(const jaxexp_function* function, const char* name, jaxexp_error** error);

/* `results` has room for jaxexp_result_count() arrays, which the caller frees. On failure none is set. */
JAXEXP_RUN_API int jaxexp_call(const jaxexp_function* function, const jaxexp_array* const* arguments,
                               size_t argument_count, jaxexp_array** results, jaxexp_error** error);
/* The same, with arguments in any order, each with its jaxexp_argument_path(). */
JAXEXP_RUN_API int jaxexp_call_by_path(const jaxexp_function* function, const char* const* paths,
                                       const jaxexp_array* const* arguments, size_t argument_count,
                                       jaxexp_array** results, jaxexp_error** error);

/* What a call spent its time on, in nanoseconds: arguments are checked and put on the devices; the plugin takes the
 * call, and computes small functions at once; until all results are there. */
typedef struct {
  int64_t prepare, start, wait;
} jaxexp_call_times;
/* The same as jaxexp_call(), which waits for the results, and says how long what took. */
JAXEXP_RUN_API int jaxexp_call_timed(const jaxexp_function* function, const jaxexp_array* const* arguments,
                                     size_t argument_count, jaxexp_array** results, jaxexp_call_times* times,
                                     jaxexp_error** error);
/* The same, which waits for the results, and copies each of them to memory of the caller's: `targets` and `sizes` have
 * jaxexp_result_count() addresses, and what is there. Sizes are jaxexp_array_size_bytes(). */
JAXEXP_RUN_API int jaxexp_call_into(const jaxexp_function* function, const jaxexp_array* const* arguments,
                                    size_t argument_count, void* const* targets, const size_t* sizes,
                                    jaxexp_error** error);

/* Numbers of the caller's, row-major without gaps; they stay where and what they are until the array is freed. */
JAXEXP_RUN_API jaxexp_array* jaxexp_array_view(const char* dtype, const int64_t* shape, size_t rank, const void* data,
                                               jaxexp_error** error);
/* The same, but the numbers are copied. */
JAXEXP_RUN_API jaxexp_array* jaxexp_array_copy(const char* dtype, const int64_t* shape, size_t rank, const void* data,
                                               jaxexp_error** error);
JAXEXP_RUN_API jaxexp_array* jaxexp_put(const jaxexp_runtime* runtime, const jaxexp_array* array, size_t device,
                                        jaxexp_error** error);
JAXEXP_RUN_API void jaxexp_array_free(jaxexp_array* array);
JAXEXP_RUN_API const char* jaxexp_array_dtype(const jaxexp_array* array);
JAXEXP_RUN_API size_t jaxexp_array_rank(const jaxexp_array* array);
JAXEXP_RUN_API const int64_t* jaxexp_array_shape(const jaxexp_array* array);
JAXEXP_RUN_API size_t jaxexp_array_size_bytes(const jaxexp_array* array);
JAXEXP_RUN_API int jaxexp_array_wait(const jaxexp_array* array, jaxexp_error** error);
/* Whether jaxexp_array_wait() would not take time: 1 or 0; -1 is a failure. */
JAXEXP_RUN_API int jaxexp_array_is_ready(const jaxexp_array* array, jaxexp_error** error);
/* Calls back once the numbers are computed, at once in this thread, or later in one of the plugin's, which should not
 * be kept. `failure` is NULL, or says why they could not be computed, during the callback. */
JAXEXP_RUN_API int jaxexp_array_on_ready(const jaxexp_array* array, void (*done)(void* user, const char* failure),
                                         void* user, jaxexp_error** error);
/* Waits for the numbers, and returns where they are in host memory until the array is freed. Numbers on a CPU device
 * are not copied, and no call donates them from then on; others are copied once. An array of size 0 may have no
 * numbers: NULL without an error. */
JAXEXP_RUN_API const void* jaxexp_array_data(const jaxexp_array* array, jaxexp_error** error);

/* DLPack: numbers that libraries share. Both structs are those of dlpack.h. */
struct DLManagedTensorVersioned;
struct DLManagedTensor; /* of DLPack before 1.0 */
/* Takes a tensor in host memory, and calls its deleter when nothing needs it any more. Numbers that are row-major
 * without gaps are used where they are, and must not change; others are copied. On failure the tensor is still the
 * caller's. */
JAXEXP_RUN_API jaxexp_array* jaxexp_array_from_dlpack(struct DLManagedTensorVersioned* tensor, jaxexp_error** error);
JAXEXP_RUN_API jaxexp_array* jaxexp_array_from_unversioned_dlpack(struct DLManagedTensor* tensor, jaxexp_error** error);
/* The same, and also takes tensors in the memory of a device of the plugin, on CUDA or ROCm. Those are used where they
 * are, have to be row-major without gaps, and no call donates them. Their numbers have to be there, or to be made in
 * the stream (a cudaStream_t or hipStream_t) that jaxexp_stream gives for a device of DLPack: its type, such as
 * kDLCUDA, and its number. A stream of 0: the plugin has none, so the numbers have to be there. */
JAXEXP_RUN_API jaxexp_array* jaxexp_from_dlpack(const jaxexp_runtime* runtime, struct DLManagedTensorVersioned* tensor,
                                                jaxexp_error** error);
JAXEXP_RUN_API jaxexp_array* jaxexp_from_unversioned_dlpack(const jaxexp_runtime* runtime,
                                                            struct DLManagedTensor* tensor, jaxexp_error** error);
JAXEXP_RUN_API int jaxexp_stream(const jaxexp_runtime* runtime, int32_t device_type, int32_t device_number,
                                 intptr_t* stream, jaxexp_error** error);
/* A tensor that is only to be read, and outlives the array; whoever has it calls its deleter. Waits for the numbers. On
 * a CPU, CUDA or ROCm device they are where they were, others are copied to the host. */
JAXEXP_RUN_API struct DLManagedTensorVersioned* jaxexp_array_to_dlpack(const jaxexp_array* array, jaxexp_error** error);
JAXEXP_RUN_API struct DLManagedTensor* jaxexp_array_to_unversioned_dlpack(const jaxexp_array* array,
                                                                          jaxexp_error** error);
/* `size` is what jaxexp_array_size_bytes() says. */
JAXEXP_RUN_API int jaxexp_array_read(const jaxexp_array* array, void* target, size_t size, jaxexp_error** error);

#ifdef __cplusplus
}
#endif

#endif
