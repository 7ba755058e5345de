"""Says things: LEVEL is `INFO`, `WARNING`, `ERROR`, `VERBOSE`, `default` (log() without a level), `print` or `much`."""

import sys

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("said when it was initialized")

    def execute(self, requests):
        responses = []
        for request in requests:
            level = pb_utils.get_input_tensor_by_name(request, "LEVEL").as_numpy()
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            self.say(level[0].decode(), text[0].decode())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", text)]))
        return responses

    def say(self, level, text):
        logger = pb_utils.Logger
        named = {
            "INFO": (logger.log_info, logger.INFO),
            "WARNING": (logger.log_warn, logger.WARNING),
            "ERROR": (logger.log_error, logger.ERROR),
            "VERBOSE": (logger.log_verbose, logger.VERBOSE),
        }
        if level == "print":
            print(text, flush=True)
        elif level == "much":
            for number in range(20_000):
                print(f"{number} {text}")
                print(f"{number} {text}", file=sys.stderr)
            sys.stdout.flush()
        elif level == "default":
            logger.log(text)
        else:
            short, value = named[level]
            short(f"{text} shortly")
            logger.log(f"{text} by level", value)

    def finalize(self):
        pb_utils.Logger.log_info("said when it was finalized")
