"""The classes and functions of Keras 2 and 3 that a ``.keras`` file may name without trust.

These layers and functions compute from their configuration and their inputs. Public layers that run
code of the file or open other files are absent: ``Lambda``, ``TFSMLayer``, ``TorchModuleWrapper``,
``FlaxLayer``, ``JaxLayer``, ``DenseFeatures``. Classes of later versions of Keras are absent until they
are added.
"""

from __future__ import annotations


def _parse_names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


LAYERS = _parse_names("""
    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D
    AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add
    AdditiveAttention AlphaDropout Attention AugMix AutoContrast Average AveragePooling1D
    AveragePooling2D AveragePooling3D BatchNormalization Bidirectional CategoryEncoding
    CenterCrop Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose
    ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D Cropping3D CutMix Dense
    DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding
    Equalization Flatten GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D
    GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D
    GlobalMaxPooling3D GroupNormalization GroupQueryAttention GroupedQueryAttention
    HashedCrossing Hashing Identity InputLayer IntegerLookup LSTM LSTMCell LayerNormalization
    LeakyReLU LocallyConnected1D LocallyConnected2D Masking MaxNumBoundingBoxes MaxPooling1D
    MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp MultiHeadAttention Multiply
    Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment RandomBrightness
    RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop RandomElasticTransform
    RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHeight RandomHue
    RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation
    RandomSharpness RandomShear RandomTranslation RandomWidth RandomZoom ReLU RepeatVector
    Rescaling Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D
    SeparableConv2D SimpleRNN SimpleRNNCell Softmax Solarization SpatialDropout1D
    SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells StringLookup Subtract
    TextVectorization ThresholdedReLU TimeDistributed UnitNormalization UpSampling1D UpSampling2D
    UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
""")
INITIALIZERS = _parse_names("""
    Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity IdentityInitializer
    LecunNormal LecunUniform Ones Orthogonal OrthogonalInitializer RandomNormal RandomUniform
    STFT STFTInitializer TruncatedNormal VarianceScaling Zeros constant glorot_normal
    glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform normal one ones
    orthogonal random_normal random_uniform stft truncated_normal uniform variance_scaling zero
    zeros
""")
REGULARIZERS = _parse_names("""
    L1 L1L2 L2 OrthogonalRegularizer l1 l1_l2 l2 orthogonal_regularizer
""")
CONSTRAINTS = _parse_names("""
    MaxNorm MinMaxNorm NonNeg RadialConstraint UnitNorm max_norm min_max_norm non_neg
    radial_constraint unit_norm
""")
ACTIVATIONS = _parse_names("""
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh
    leaky_relu linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink
    softmax softplus softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh
    tanh_shrink threshold
""")
# TensorFlow's operations in networks of Keras 2; all functions of these modules compute.
_OPERATORS = r"(math|nn|linalg|signal)\.[a-z][a-z0-9_]*|__operators__\.[a-z_]+"
_FUNCTIONS = _parse_names("""
    broadcast_to cast clip_by_value compat.v1.gather compat.v1.transpose concat expand_dims
    gather gather_nd identity image.resize one_hot ones_like pad repeat reshape reverse shape
    slice split squeeze stack strided_slice tile transpose unstack where zeros_like
""")
TENSORFLOW_FUNCTION = "|".join(
    [
        _OPERATORS,
        rf"keras\.activations\.({'|'.join(sorted(ACTIVATIONS))})",
        *(name.replace(".", r"\.") for name in sorted(_FUNCTIONS)),
    ]
)
_POLICIES = frozenset(("DTypePolicy", "DTypePolicyMap", "FloatDTypePolicy", "QuantizedDTypePolicy"))
_MODELS = frozenset(("Sequential", "Functional"))
# The classes of each public module; files of both libraries name it with the root ``keras``.
CLASSES = {
    "keras": frozenset(("Sequential", "DTypePolicy")),
    "keras.layers": LAYERS,
    "keras.models": _MODELS,
    "keras.initializers": INITIALIZERS,
    "keras.regularizers": REGULARIZERS,
    "keras.constraints": CONSTRAINTS,
    "keras.mixed_precision": frozenset(("Policy", "DTypePolicy")),
    "keras.dtype_policies": _POLICIES,
    "keras.random": frozenset(("SeedGenerator",)),
    "keras.quantizers": frozenset(("AbsMaxQuantizer",)),
    # Private modules whose classes have no public name.
    "keras.src.models.functional": frozenset(("Functional",)),
    "keras.src.engine.functional": frozenset(("Functional",)),
    "keras.src.models.sequential": frozenset(("Sequential",)),
    "keras.src.engine.sequential": frozenset(("Sequential",)),
}
OPERATION_MODULE = r"keras\.src\.ops\.(core|einops|image|linalg|math|nn|numpy)"
TENSORFLOW_OPERATIONS = "keras.src.layers.core.tf_op_layer"
# Strings that Keras replaces by the function or object with this name, by the end of their key.
NAMES_BY_KEY = {
    "activation": ACTIVATIONS,
    "_initializer": INITIALIZERS,
    "_regularizer": REGULARIZERS,
    "_constraint": CONSTRAINTS,
}
# Tensor types whose modules TensorFlow has imported.
TYPE_SPECS = {
    "TensorSpec": ("tensorflow.python.framework.tensor", "tensorflow.python.framework.tensor_spec"),
    "SparseTensorSpec": ("tensorflow.python.framework.sparse_tensor",),
    "RaggedTensorSpec": ("tensorflow.python.ops.ragged.ragged_tensor",),
}
# The types of constant arrays in a configuration.
DTYPES = frozenset(
    [
        "bfloat16",
        "bool",
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "string",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
    ]
)
