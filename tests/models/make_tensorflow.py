"""How are the frozen graphs of the tests made, with TensorFlow's own answers to them?

    python -m venv /tmp/tensorflow && /tmp/tensorflow/bin/pip install tensorflow-cpu==2.15.1 scikit-learn
    /tmp/tensorflow/bin/python tests/models/make_tensorflow.py

Each model is a folder of tests/models/tensorflow: `1/model.graphdef`, and `answers.npz` with inputs and TensorFlow's outputs, which tests compare with. No
test needs TensorFlow.
"""

import pathlib

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

FOLDER = pathlib.Path(__file__).parent / "tensorflow"


def freeze(session: tf.Session, outputs: list[str]) -> tf.GraphDef:
    graph = tf.graph_util.convert_variables_to_constants(session, session.graph_def, outputs)
    return tf.graph_util.remove_training_nodes(graph, protected_nodes=outputs)


def store(name: str, graph: tf.GraphDef, inputs: dict[str, np.ndarray], outputs: list[str]) -> None:
    """Runs the frozen graph in a session of its own, and stores both."""
    for node in graph.node:
        node.attr.pop("_output_shapes", None)
    with tf.Graph().as_default() as frozen, tf.Session(graph=frozen) as session:
        tf.import_graph_def(graph, name="")
        answers = session.run([f"{output}:0" for output in outputs], {f"{key}:0": value for key, value in inputs.items()})
    folder = FOLDER / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.graphdef").write_bytes(graph.SerializeToString(deterministic=True))
    stored = {f"in.{key}": value for key, value in inputs.items()} | {f"out.{key}": value for key, value in zip(outputs, answers)}
    stored = {key: value.astype("S") if value.dtype == object else value for key, value in stored.items()}
    np.savez_compressed(folder.parent / "answers.npz", **stored)
    print(name, (folder / "model.graphdef").stat().st_size, {key: (value.shape, value.dtype) for key, value in stored.items()})


def simple() -> None:
    """Sum and difference, as the tutorial of the mission has it."""
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = (tf.placeholder(tf.int32, [16], name=f"INPUT{index}") for index in range(2))
        tf.add(a, b, name="OUTPUT0")
        tf.subtract(a, b, name="OUTPUT1")
        rows = np.arange(16, dtype=np.int32)
        store("simple", session.graph_def, {"INPUT0": rows, "INPUT1": np.ones(16, np.int32)}, ["OUTPUT0", "OUTPUT1"])


def simple_string() -> None:
    """The same with texts of numbers, in rows."""
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = (tf.strings.to_number(tf.placeholder(tf.string, [None, 16], name=f"INPUT{index}"), tf.int32) for index in range(2))
        tf.as_string(tf.add(a, b), name="OUTPUT0")
        tf.as_string(tf.subtract(a, b), name="OUTPUT1")
        texts = np.array([[str(row * 16 + index).encode() for index in range(16)] for row in range(2)], dtype=object)
        ones = np.array([[b" -7 "] * 16] * 2, dtype=object)
        store("simple_string", session.graph_def, {"INPUT0": texts, "INPUT1": ones}, ["OUTPUT0", "OUTPUT1"])


def texts() -> None:
    """Texts that are moved about, and not looked at."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.string, [None, 2], name="x")
        tf.identity(x, name="same")
        tf.reshape(x, [-1], name="flat")
        tf.concat([x, tf.constant([[b"one", b""]])], axis=0, name="joined")
        tf.stack([x, x], axis=-1, name="packed")
        values = np.array([[b"a", b"bc" * 200], [b"\xff\x01", "ü".encode()], [b"d", b"e"]], dtype=object)
        store("texts", session.graph_def, {"x": values}, ["same", "flat", "joined", "packed"])


def digits() -> None:
    """A small convolutional net on scikit-learn's digits."""
    data = load_digits()
    images, labels = (data.images[..., None] / 16).astype(np.float32), data.target
    rng = np.random.default_rng(7)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(7)
        image = tf.placeholder(tf.float32, [None, 8, 8, 1], name="image")
        x = image
        for index, (before, after) in enumerate([(1, 8), (8, 16)]):
            kernel = tf.Variable(rng.normal(0, 0.3, [3, 3, before, after]).astype(np.float32), name=f"kernel{index}")
            bias = tf.Variable(np.zeros(after, np.float32), name=f"bias{index}")
            x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        # The number of rows is computed, as Keras does.
        x = tf.reshape(x, tf.stack([tf.shape(x)[0], 64]))
        weight = tf.Variable(rng.normal(0, 0.2, [64, 10]).astype(np.float32), name="weight")
        last = tf.Variable(np.zeros(10, np.float32), name="last")
        logits = tf.nn.bias_add(tf.matmul(x, weight), last)
        tf.nn.softmax(logits, name="probabilities")
        tf.argmax(logits, axis=-1, name="digit")
        label = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
        train = tf.train.AdamOptimizer(3e-3).minimize(loss)
        session.run(tf.global_variables_initializer())
        for _ in range(600):
            rows = rng.choice(1500, 64)
            session.run(train, {image: images[rows], label: labels[rows]})
        names = ["probabilities", "digit"]
        graph = freeze(session, names)
    store("digits", graph, {"image": images[1500:1532]}, names)
    with np.load(FOLDER / "digits" / "answers.npz") as stored:
        print("right", (stored["out.digit"] == labels[1500:1532]).mean())


def datatypes() -> None:
    """Each datatype through the graph unchanged, and one constant of each."""
    kinds = [tf.bool, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64]
    inputs, outputs = {}, []
    with tf.Graph().as_default(), tf.Session() as session:
        for kind in kinds:
            name = kind.name
            x = tf.placeholder(kind, [None, 3], name=f"in_{name}")
            values = np.array([[0, 1, 2], [3, 4, 5]]) if kind != tf.bool else np.array([[False, True, True], [True, False, True]])
            constant = tf.constant(np.array([[1, 0, 1]]).astype(kind.as_numpy_dtype), kind)
            tf.concat([x, constant, tf.constant(np.ones([1, 3]).astype(kind.as_numpy_dtype), kind)], axis=-2, name=f"out_{name}")
            inputs[f"in_{name}"] = values.astype(kind.as_numpy_dtype)
            outputs.append(f"out_{name}")
        store("datatypes", session.graph_def, inputs, outputs)


def operators() -> None:
    """Each operation that the backend has, and its odd cases, over one input."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 6, 5, 4], name="x")
        whole = tf.placeholder(tf.int32, [None, 4], name="whole")
        rng = np.random.default_rng(3)
        made = {}

        def random(*shape: int) -> tf.Tensor:
            return tf.constant(rng.normal(size=shape).astype(np.float32))

        for name in ("abs", "ceil", "exp", "floor", "negative", "sigmoid", "square", "tanh"):
            made[name] = getattr(tf, name)(x)
        positive = tf.square(x) + 0.1
        made |= {"log": tf.math.log(positive), "rsqrt": tf.math.rsqrt(positive), "sqrt": tf.sqrt(positive)}
        made |= {"relu": tf.nn.relu(x), "relu6": tf.nn.relu6(x * 4), "stop": tf.stop_gradient(x)}
        other = random(5, 1)
        made |= {"add": x + other, "sub": x - other, "mul": x * other, "real_div": tf.realdiv(x, positive), "div": tf.div(x, positive)}
        made |= {"maximum": tf.maximum(x, other), "minimum": tf.minimum(x, other), "pow": tf.pow(positive, random(4))}
        made |= {"add_n": tf.add_n([x, x * 2, positive]), "bias_add": tf.nn.bias_add(x, random(4))}
        made |= {"equal": tf.raw_ops.Equal(x=whole, y=tf.constant([1, 2, 3, 4])), "greater": x > other, "less": x < other}
        made |= {"greater_equal": whole >= 2, "less_equal": whole <= 2}
        made |= {"and": (whole > 1) & (whole < 4), "or": (whole < 1) | (whole > 3)}
        made |= {"cast": tf.cast(x * 3, tf.int32), "cast_bool": tf.cast(whole > 2, tf.float32), "cast_wide": tf.cast(whole, tf.int64)}
        matrix = tf.reshape(x, [-1, 20])
        made |= {"matmul": tf.matmul(matrix, random(20, 3)), "matmul_b": tf.matmul(matrix, random(3, 20), transpose_b=True)}
        made |= {"matmul_a": tf.matmul(matrix, matrix, transpose_a=True), "matmul_whole": tf.matmul(whole, tf.ones([4, 2], tf.int32))}
        for name in ("max", "mean", "min", "prod", "sum"):
            made[f"reduce_{name}"] = getattr(tf, f"reduce_{name}")(x, axis=[1, 2])
            made[f"reduce_{name}_keep"] = getattr(tf, f"reduce_{name}")(x, axis=[0, -1], keepdims=True)
        made |= {"sum_one": tf.reduce_sum(x, axis=0), "sum_all": tf.reduce_sum(x), "sum_none": tf.reduce_sum(x, axis=[])}
        made |= {"argmax": tf.argmax(x, axis=2), "argmax_short": tf.argmax(x, axis=-1, output_type=tf.int32)}
        made |= {"softmax": tf.nn.softmax(x), "softmax_flat": tf.nn.softmax(matrix)}
        made |= {"concat": tf.concat([x, x[:, :2]], axis=1), "concat_end": tf.concat([x, positive], axis=-1)}
        made |= {"expand": tf.expand_dims(x, 1), "expand_end": tf.expand_dims(x, -1), "squeeze": tf.squeeze(x[:, 2:3], axis=[1])}
        made |= {"fill": tf.fill(tf.shape(whole), tf.reduce_sum(x)), "tile": tf.tile(whole, [1, 3]), "range": whole + tf.range(4)}
        made |= {"gather": tf.gather(tf.constant(np.arange(30, dtype=np.float32).reshape(10, 3)), whole)}
        made |= {"gather_wide": tf.gather(random(10), tf.cast(whole, tf.int64))}
        made |= {"pack": tf.stack([x, positive], axis=1), "pack_end": tf.stack([whole, whole, whole], axis=-1)}
        made |= {"pad": tf.pad(x, [[0, 0], [1, 2], [0, 1], [3, 0]]), "pad_whole": tf.pad(whole, [[0, 0], [1, 1]])}
        made |= {"shape": tf.shape(x), "size": tf.size(x), "rank": tf.rank(x)}
        made |= {"reshape": tf.reshape(x, [-1, 3, 2]), "reshape_computed": tf.reshape(x, [tf.shape(x)[0] * 2, tf.shape(x)[1] * 10])}
        made |= {"slice": tf.slice(x, [0, 1, 2, 0], [-1, 3, 2, 4]), "slice_step": x[:, 1::2, :4:3], "slice_end": x[..., -2:]}
        made |= {"slice_one": x[:, 3], "slice_new": x[:, None, 2:4, ..., 1], "slice_last": whole[:, -1], "slice_much": x[:, 0:100]}
        made |= {"transpose": tf.transpose(x, [3, 0, 2, 1]), "transpose_all": tf.transpose(whole)}
        for padding in ("SAME", "VALID"):
            end = padding.lower()
            made[f"conv_{end}"] = tf.nn.conv2d(x, random(3, 2, 4, 7), [2, 1], padding)
            made[f"depthwise_{end}"] = tf.nn.depthwise_conv2d(x, random(3, 3, 4, 2), [1, 1, 1, 1], padding)
            made[f"max_pool_{end}"] = tf.nn.max_pool2d(x, [3, 2], [2, 2], padding)
            made[f"avg_pool_{end}"] = tf.nn.avg_pool2d(x, [3, 2], [2, 2], padding)
        norm = tf.raw_ops.FusedBatchNormV3(x=x, scale=random(4), offset=random(4), mean=random(4), variance=tf.abs(random(4)) + 0.5, is_training=False)
        made["batch_norm"] = norm.y
        made |= {"text": tf.as_string(x), "text_whole": tf.as_string(whole), "text_flag": tf.as_string(whole > 2)}
        outputs = [tf.identity(value, name=f"out_{name}").op.name for name, value in made.items()]
        inputs = {"x": rng.normal(size=(3, 6, 5, 4)).astype(np.float32), "whole": rng.integers(0, 5, (3, 4)).astype(np.int32)}
        store("operators", session.graph_def, inputs, outputs)


if __name__ == "__main__":
    tf.disable_eager_execution()
    for make in (simple, simple_string, texts, digits, datatypes, operators):
        make()
