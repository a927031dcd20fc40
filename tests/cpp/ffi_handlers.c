/* Handlers of custom calls, as users of the runtime write them against the header of XLA's FFI. */
#include <xla/ffi/api/c_api.h>

/* Answers which version a handler is built for; 0 where it is called for another reason. */
static int answers(const XLA_FFI_CallFrame* frame, int minor_version) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  for (; extension; extension = extension->next) {
    if (extension->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Api_Version* version = &((XLA_FFI_Metadata_Extension*)extension)->metadata->api_version;
    version->major_version = XLA_FFI_API_MAJOR;
    version->minor_version = minor_version;
    return 1;
  }
  return 0;
}

/* Doubles an array of float32. */
XLA_FFI_Error* twice(XLA_FFI_CallFrame* frame) {
  if (answers(frame, frame->api->api_version.minor_version)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *y = frame->rets.rets[0];
  for (int64_t i = 0; i < x->dims[0]; ++i) ((float*)y->data)[i] = 2 * ((float*)x->data)[i];
  return NULL;
}

XLA_FFI_Error* of_another_version(XLA_FFI_CallFrame* frame) {
  answers(frame, 1000);
  return NULL;
}
